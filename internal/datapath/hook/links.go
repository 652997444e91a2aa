package hook

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

const linkPin = "link-"

// Links attaches an instance's hooks by links that are pinned in Dir, under
// link-HOOK-KIND-INTERFACE. It holds nothing itself: what is attached is what is pinned.
type Links struct {
	Dir      string
	Programs *Programs
	// Step is called after each step that must be safe to die at; an error of it ends the work.
	Step func(name string) error
}

// Path is where a hook's link on an interface is pinned. bpffs refuses dots, which VLAN interfaces
// have.
func Path(dir, name string, kind Kind, iface string) string {
	return filepath.Join(dir, linkPin+name+"-"+string(kind)+"-"+strings.ReplaceAll(iface, ".", "+"))
}

// Pinned is the pin of a link.
type Pinned struct {
	Path, Hook string
	Kind       Kind
	Iface      string
}

// List lists the links of an instance.
func List(dir string) ([]Pinned, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var links []Pinned
	for _, e := range entries {
		parts := strings.SplitN(strings.TrimPrefix(e.Name(), linkPin), "-", 3)
		if !strings.HasPrefix(e.Name(), linkPin) || len(parts) != 3 {
			continue
		}
		links = append(links,
			Pinned{filepath.Join(dir, e.Name()), parts[0], Kind(parts[1]),
				strings.ReplaceAll(parts[2], "+", ".")})
	}
	return links, nil
}

// formerly are names that hooks had in releases from which an agent may be upgraded, with those of
// now.
var formerly = map[string]string{"from_host": "from_segment"}

// RenamePins gives the links that a former release has pinned in dir the names that hooks have now,
// so that their programs are replaced in place. Of two links that are there under both names, since
// that release has run once more, the one that it pinned is in force: it was attached later.
func RenamePins(dir string) error {
	links, err := List(dir)
	for _, l := range links {
		name, renamed := formerly[l.Hook]
		if !renamed {
			continue
		}
		to := Path(dir, name, l.Kind, l.Iface)
		if _, missing := os.Lstat(to); missing == nil {
			err = errors.Join(err, Detach(to))
		}
		err = errors.Join(err, os.Rename(l.Path, to))
	}
	return err
}

// EnsureOne makes the hook's program the one that runs on the interface: an adopted link is
// updated in place, which is atomic for packets; otherwise a new one is attached and pinned.
// A link that cannot be updated stays as it is, with the program that it has.
func (l *Links) EnsureOne(h Attachment, iface string, ifindex int) error {
	path := Path(l.Dir, h.Name, h.Kind, iface)
	updated, err := l.update(path, h, ifindex)
	if err != nil {
		return fmt.Errorf("update %s on %s (%s), the program that was there stays: %w", h.Name,
			iface, h.Kind, err)
	}
	if updated {
		return nil
	}
	attached, err := l.Programs.Attach(h, ifindex)
	if err != nil {
		return fmt.Errorf("attach %s to %s (%s): %w", h.Name, iface, h.Kind, err)
	}
	defer attached.Close()
	if err := attached.Pin(path); err != nil {
		return fmt.Errorf("pin %s on %s: %w", h.Name, iface, err)
	}
	return nil
}

// update replaces the program of a pinned link, if there is one on the interface that is meant.
// The link of an interface that is gone is removed. That of one which had the name before stays
// attached, pinned under the name that the interface has now.
func (l *Links) update(path string, h Attachment, ifindex int) (bool, error) {
	pinned, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer pinned.Close()
	switch at := linkIfindex(pinned); at {
	case ifindex:
		return true, l.Programs.Update(pinned, h)
	case 0:
		if err := os.Remove(path); err != nil {
			return false, fmt.Errorf("remove stale link %s: %w", path, err)
		}
		return false, nil
	default:
		return false, l.followRename(pinned, path, h, at)
	}
}

// followRename gives a link the pin that belongs to its interface's present name.
func (l *Links) followRename(pinned link.Link, path string, h Attachment, ifindex int) error {
	now, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("find interface %d of %s: %w", ifindex, path, err)
	}
	to := Path(l.Dir, h.Name, h.Kind, now.Attrs().Name)
	if _, err := RemoveDead(to); err != nil {
		return err
	}
	if err := pinned.Pin(to); err != nil {
		return fmt.Errorf("pin link of the renamed %s: %w", now.Attrs().Name, err)
	}
	return nil
}

// RemoveDead removes a pin whose interface is gone, and tells whether there is none any more.
func RemoveDead(path string) (gone bool, err error) {
	at, err := PinnedAt(path)
	if err != nil || at != 0 {
		return false, err
	}
	return true, removePin(path)
}

// linkIfindex is the interface that a link is attached to, 0 if that is gone.
func linkIfindex(l link.Link) int {
	info, err := l.Info()
	if err != nil {
		return 0
	}
	if xdp := info.XDP(); xdp != nil {
		return int(xdp.Ifindex)
	}
	if tcx := info.TCX(); tcx != nil {
		return int(tcx.Ifindex)
	}
	return 0
}

// Ensure makes hooks the ones of an interface, and takes those of another mode away that are not in
// keep. New ones come before old ones go, so the interface is never without.
func (l *Links) Ensure(iface string, ifindex int, hooks []Attachment, keep ...Attachment) error {
	for _, h := range hooks {
		if err := l.swapXDPMode(h, iface, ifindex); err != nil {
			return err
		}
		if err := l.EnsureOne(h, iface, ifindex); err != nil {
			return err
		}
		if err := l.Step(h.Name); err != nil {
			return err
		}
	}
	return l.Drop(iface, append(keep, hooks...)...)
}

// swapXDPMode makes room for an XDP program where the other of native and generic XDP is attached:
// the kernel takes one of them only. The TC program stands in meanwhile, and goes with the next
// Drop.
func (l *Links) swapXDPMode(h Attachment, iface string, ifindex int) error {
	other := map[Kind]Kind{XDP: XDPGeneric, XDPGeneric: XDP}[h.Kind]
	if other == "" {
		return nil
	}
	old := Path(l.Dir, h.Name, other, iface)
	if at, err := PinnedAt(old); err != nil || at != ifindex {
		return err
	}
	standIn := Attachment{h.Name, TCIngress, l.Programs.Get(h.Name, TCIngress)}
	if err := l.EnsureOne(standIn, iface, ifindex); err != nil {
		return err
	}
	if err := l.Step("stand-in"); err != nil {
		return err
	}
	return errors.Join(Detach(old), l.Step("swap"))
}

// PinnedAt is the interface that a pinned link is attached to, 0 if there is no such link or
// interface.
func PinnedAt(path string) (int, error) {
	pinned, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer pinned.Close()
	return linkIfindex(pinned), nil
}

// Drop detaches every hook of an interface but those to keep.
func (l *Links) Drop(iface string, keep ...Attachment) error {
	var failed error
	for _, h := range Every() {
		wanted := slices.ContainsFunc(keep,
			func(k Attachment) bool { return k.Name == h.Name && k.Kind == h.Kind })
		path := Path(l.Dir, h.Name, h.Kind, iface)
		if _, err := os.Lstat(path); err == nil && !wanted {
			failed = errors.Join(failed, Detach(path))
		}
	}
	return failed
}

// Detach takes a link's program off its interface at once. Removing the pin alone would leave
// that to whoever still holds a descriptor.
func Detach(path string) error {
	if pinned, err := link.LoadPinnedLink(path, nil); err == nil {
		if raw, ok := pinned.(interface{ Detach() error }); ok {
			_ = raw.Detach() // the interface may be gone; the pin goes in any case
		}
		pinned.Close()
	}
	return removePin(path)
}

func removePin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove link %s: %w", path, err)
	}
	return nil
}

// DropDead removes the pins of an interface that is gone.
func (l *Links) DropDead(iface string) error {
	var failed error
	for _, h := range Every() {
		_, err := RemoveDead(Path(l.Dir, h.Name, h.Kind, iface))
		failed = errors.Join(failed, err)
	}
	return failed
}

// Check says which of the hooks is not attached to the interface, nil if all are.
func (l *Links) Check(iface string, ifindex int, hooks []Attachment) error {
	for _, h := range hooks {
		at, err := PinnedAt(Path(l.Dir, h.Name, h.Kind, iface))
		if err != nil {
			return err
		}
		if at != ifindex {
			return fmt.Errorf("%s is not attached to %s (%s)", h.Name, iface, h.Kind)
		}
	}
	return nil
}

// Status is one attached hook.
type Status struct {
	Hook      string `json:"hook"`
	Interface string `json:"interface"`
	Kind      Kind   `json:"kind"`
	ProgramID uint32 `json:"programID"`
}

// Status lists what is attached where.
func (l *Links) Status() ([]Status, error) {
	links, err := List(l.Dir)
	if err != nil {
		return nil, err
	}
	status := make([]Status, 0, len(links))
	for _, p := range links {
		s := Status{Hook: p.Hook, Interface: p.Iface, Kind: p.Kind}
		if pinned, err := link.LoadPinnedLink(p.Path, nil); err == nil {
			if info, err := pinned.Info(); err == nil {
				s.ProgramID = uint32(info.Program)
			}
			pinned.Close()
		}
		status = append(status, s)
	}
	return status, nil
}
