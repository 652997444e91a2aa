package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

const linkPin = "link-"

// linkPath is where a hook's link on an interface is pinned: link-HOOK-KIND-INTERFACE.
// bpffs refuses dots, which VLAN interfaces have.
func linkPath(dir, hookName, kind, iface string) string {
	return filepath.Join(dir, linkPin+hookName+"-"+kind+"-"+strings.ReplaceAll(iface, ".", "+"))
}

type pinnedLink struct{ path, hook, kind, iface string }

// pinnedLinks lists the links of an instance.
func pinnedLinks(dir string) ([]pinnedLink, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var links []pinnedLink
	for _, e := range entries {
		parts := strings.SplitN(strings.TrimPrefix(e.Name(), linkPin), "-", 3)
		if !strings.HasPrefix(e.Name(), linkPin) || len(parts) != 3 {
			continue
		}
		links = append(links, pinnedLink{filepath.Join(dir, e.Name()), parts[0], parts[1], strings.ReplaceAll(parts[2], "+", ".")})
	}
	return links, nil
}

// ensureLink makes the hook's program the one that runs on the interface: an adopted link is
// updated in place, which is atomic for packets; otherwise a new one is attached and pinned.
// A link that cannot be updated stays as it is, with the program that it has.
func (d *Datapath) ensureLink(h hook, iface string, ifindex int) error {
	path := linkPath(d.opts.BPFDir, h.name, h.kind, iface)
	updated, err := d.updateLink(path, h, ifindex)
	if err != nil {
		return fmt.Errorf("update %s on %s (%s), the program that was there stays: %w", h.name, iface, h.kind, err)
	}
	if updated {
		return nil
	}
	attached, err := d.attach(h, ifindex)
	if err != nil {
		return fmt.Errorf("attach %s to %s (%s): %w", h.name, iface, h.kind, err)
	}
	defer attached.Close()
	if err := attached.Pin(path); err != nil {
		return fmt.Errorf("pin %s on %s: %w", h.name, iface, err)
	}
	return nil
}

// updateLink replaces the program of a pinned link, if there is one on the interface that is meant.
// The link of an interface that is gone is removed. That of one which had the name before stays
// attached, pinned under the name that the interface has now.
func (d *Datapath) updateLink(path string, h hook, ifindex int) (bool, error) {
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
		return true, d.update(pinned, h)
	case 0:
		if err := os.Remove(path); err != nil {
			return false, fmt.Errorf("remove stale link %s: %w", path, err)
		}
		return false, nil
	default:
		return false, d.followRename(pinned, path, h, at)
	}
}

// followRename gives a link the pin that belongs to its interface's present name.
func (d *Datapath) followRename(pinned link.Link, path string, h hook, ifindex int) error {
	now, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return fmt.Errorf("find interface %d of %s: %w", ifindex, path, err)
	}
	to := linkPath(d.opts.BPFDir, h.name, h.kind, now.Attrs().Name)
	if _, err := removeDeadLink(to); err != nil {
		return err
	}
	if err := pinned.Pin(to); err != nil {
		return fmt.Errorf("pin link of the renamed %s: %w", now.Attrs().Name, err)
	}
	return nil
}

// removeDeadLink removes a pin whose interface is gone, and tells whether there is none any more.
func removeDeadLink(path string) (gone bool, err error) {
	at, err := pinnedAt(path)
	if err != nil || at != 0 {
		return false, err
	}
	return true, removeIfExists(path)
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

// everyHook lists all that can be pinned for an interface, of any mode.
var everyHook = []hook{
	{name: "from_pod", kind: kindXDP}, {name: "from_pod", kind: kindXDPGeneric}, {name: "from_pod", kind: kindTCIngress},
	{name: "from_wire", kind: kindXDP}, {name: "from_wire", kind: kindXDPGeneric}, {name: "from_wire", kind: kindTCIngress},
	{name: "to_pod", kind: kindTCEgress}, {name: "to_wire", kind: kindTCEgress}, {name: "pod_out", kind: kindTCEgress},
	{name: "from_host", kind: kindTCIngress}, {name: "tag_in", kind: kindTCIngress},
}

// ensureHooks makes hooks the ones of an interface, and takes those of another mode away that are not in keep. New
// ones come before old ones go, so the interface is never without.
func (d *Datapath) ensureHooks(iface string, ifindex int, hooks []hook, keep ...hook) error {
	for _, h := range hooks {
		if err := d.swapXDPMode(h, iface, ifindex); err != nil {
			return err
		}
		if err := d.ensureLink(h, iface, ifindex); err != nil {
			return err
		}
		if err := d.step(h.name); err != nil {
			return err
		}
	}
	return d.dropLinks(iface, append(keep, hooks...)...)
}

// swapXDPMode makes room for an XDP program where the other of native and generic XDP is attached: the
// kernel takes one of them only. The TC program stands in meanwhile, and goes with the next dropLinks.
func (d *Datapath) swapXDPMode(h hook, iface string, ifindex int) error {
	other := map[string]string{kindXDP: kindXDPGeneric, kindXDPGeneric: kindXDP}[h.kind]
	if other == "" {
		return nil
	}
	old := linkPath(d.opts.BPFDir, h.name, other, iface)
	if at, err := pinnedAt(old); err != nil || at != ifindex {
		return err
	}
	standIn := hook{h.name, kindTCIngress, map[string]*ebpf.Program{"from_pod": d.progs.FromPodTC, "from_wire": d.progs.FromWireTC}[h.name]}
	if err := d.ensureLink(standIn, iface, ifindex); err != nil {
		return err
	}
	if err := d.step("stand-in"); err != nil {
		return err
	}
	return errors.Join(detach(old), d.step("swap"))
}

// pinnedAt is the interface that a pinned link is attached to, 0 if there is no such link or interface.
func pinnedAt(path string) (int, error) {
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

// dropLinks detaches every hook of an interface but those to keep.
func (d *Datapath) dropLinks(iface string, keep ...hook) error {
	var failed error
	for _, h := range everyHook {
		wanted := slices.ContainsFunc(keep, func(k hook) bool { return k.name == h.name && k.kind == h.kind })
		path := linkPath(d.opts.BPFDir, h.name, h.kind, iface)
		if _, err := os.Lstat(path); err == nil && !wanted {
			failed = errors.Join(failed, detach(path))
		}
	}
	return failed
}

// detach takes a link's program off its interface at once. Removing the pin alone would leave
// that to whoever still holds a descriptor.
func detach(path string) error {
	if pinned, err := link.LoadPinnedLink(path, nil); err == nil {
		if raw, ok := pinned.(interface{ Detach() error }); ok {
			_ = raw.Detach() // the interface may be gone; the pin goes in any case
		}
		pinned.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove link %s: %w", path, err)
	}
	return nil
}

// Links lists what is attached where.
func (d *Datapath) Links() ([]LinkStatus, error) {
	links, err := pinnedLinks(d.opts.BPFDir)
	if err != nil {
		return nil, err
	}
	status := make([]LinkStatus, 0, len(links))
	for _, l := range links {
		s := LinkStatus{Hook: l.hook, Interface: l.iface, Kind: l.kind}
		if pinned, err := link.LoadPinnedLink(l.path, nil); err == nil {
			if info, err := pinned.Info(); err == nil {
				s.ProgramID = uint32(info.Program)
			}
			pinned.Close()
		}
		status = append(status, s)
	}
	return status, nil
}
