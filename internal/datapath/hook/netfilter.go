package hook

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// AllInterfaces is what the pins of hooks at Node have in an interface's place: they cover every
// interface of the network namespace, once per address family.
const AllInterfaces = "all"

// priorities are how many a netfilter hook may have, from its first on. A netfilter link's program
// cannot be replaced, and no two BPF programs may have one priority, so an upgrade attaches the new
// program at another one. The kernel frees a priority some time after its link is gone.
const priorities = 16

// NodePaths are where the links of hooks at Node are pinned.
func NodePaths(dir string) []string {
	var list []string
	for _, h := range Table {
		for _, f := range families {
			if h.netfilter != nil {
				list = append(list, Path(dir, h.Name, f.kind, AllInterfaces))
			}
		}
	}
	return list
}

// EnsureNode makes this run's programs the ones that are attached at Node. There is no moment
// without one.
func (l *Links) EnsureNode() error {
	return l.ensure(func(h Hook) bool { return h.netfilter != nil })
}

// EnsureGuards does so for the hooks that ask endpoints' policies, and detaches the others.
func (l *Links) EnsureGuards() error {
	asks := func(h Hook) bool { return h.netfilter != nil && h.netfilter.asks }
	if err := l.ensure(asks); err != nil {
		return err
	}
	return l.drop(func(h Hook) bool { return h.netfilter != nil && !asks(h) })
}

func (l *Links) ensure(wanted func(Hook) bool) error {
	for _, h := range Table {
		if !wanted(h) {
			continue
		}
		for _, f := range families {
			path := Path(l.Dir, h.Name, f.kind, AllInterfaces)
			program, err := l.Programs.netfilter(h, f.kind)
			if err != nil {
				return err
			}
			if err := h.netfilter.replace(path, program, f.family, l.Step); err != nil {
				return fmt.Errorf("attach %s (%s): %w (the kernel needs CONFIG_NETFILTER_BPF_LINK, Linux 6.4)", h.Name, f.kind, err)
			}
		}
	}
	return nil
}

// DropNode detaches what is attached at Node.
func (l *Links) DropNode() error {
	return l.drop(func(h Hook) bool { return h.netfilter != nil })
}

func (l *Links) drop(unwanted func(Hook) bool) error {
	for _, h := range Table {
		for _, f := range families {
			if !unwanted(h) {
				continue
			}
			if err := Detach(Path(l.Dir, h.Name, f.kind, AllInterfaces)); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace attaches and pins the new link beside the old one, and takes the old one's name with it.
// An agent that died in between has left both, or the new one alone under its own name.
func (n *netfilterHook) replace(path string, program *ebpf.Program,
	family link.NetfilterProtocolFamily, step func(string) error) error {
	fresh := path + "+"
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		if err := os.Rename(fresh, path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("take over %s: %w", fresh, err)
		}
	}
	if err := Detach(fresh); err != nil {
		return err
	}
	old, err := link.LoadPinnedLink(path, nil)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open pinned link: %w", err)
	}
	if old != nil {
		defer old.Close() // its last reference, once the pin is another's
	}
	attached, err := n.attach(program, family)
	if err != nil {
		return err
	}
	defer attached.Close()
	if err := attached.Pin(fresh); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	if err := step("guard pinned"); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// attach takes the first priority that is free.
func (n *netfilterHook) attach(program *ebpf.Program,
	family link.NetfilterProtocolFamily) (attached link.Link, err error) {
	for priority := n.first; priority < n.first+priorities; priority++ {
		attached, err = link.AttachNetfilter(link.NetfilterOptions{
			Program: program, ProtocolFamily: family, Hook: n.hook, Priority: priority,
		})
		if !errors.Is(err, unix.EBUSY) {
			return attached, err
		}
	}
	return nil, err
}
