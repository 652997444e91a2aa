package datapath

import (
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
)

// Works says why the pods of a node cannot go on without an agent, nil if they can: the pinned
// programs are there, and hook an uplink of this network namespace. It needs no running datapath.
func Works(bpfDir string) error {
	links, err := hook.List(bpfDir)
	if err != nil {
		return err
	}
	hooked := map[string]bool{}
	for _, l := range links {
		if !hook.OnlyAt(l.Hook, hook.Uplink) {
			continue
		}
		at, err := hook.PinnedAt(l.Path)
		if err != nil {
			return err
		}
		if now, err := netlink.LinkByName(l.Iface); err != nil || now.Attrs().Index != at {
			return fmt.Errorf("%s is not attached to %s", l.Hook, l.Iface)
		}
		hooked[l.Hook] = true
	}
	if maps, _ := filepath.Glob(filepath.Join(bpfDir, bpf.MapPin+"weft_config-*")); len(maps) == 0 {
		return fmt.Errorf("nothing that works is pinned in %s", bpfDir)
	}
	for _, h := range hook.Table {
		if hook.OnlyAt(h.Name, hook.Uplink) && !hooked[h.Name] {
			return fmt.Errorf("nothing that works is pinned in %s", bpfDir)
		}
	}
	return nil
}

// FiltersPod tells whether a program of Weft's looks at what comes from a pod by this interface.
func FiltersPod(l netlink.Link) (bool, error) {
	var ids []ebpf.ProgramID
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
		ids = append(ids, ebpf.ProgramID(xdp.ProgId))
	}
	found, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index,
		Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return false, fmt.Errorf("list programs on %s: %w", l.Attrs().Name, err)
	}
	for _, p := range found.Programs {
		ids = append(ids, p.ID)
	}
	for _, id := range ids {
		program, err := ebpf.NewProgramFromID(id)
		if err != nil {
			return false, fmt.Errorf("open program %d on %s: %w", id, l.Attrs().Name, err)
		}
		info, err := program.Info()
		program.Close()
		if err != nil {
			return false, fmt.Errorf("read program %d on %s: %w", id, l.Attrs().Name, err)
		}
		if info.Name == hook.Function("from_pod") {
			return true, nil
		}
	}
	return false, nil
}
