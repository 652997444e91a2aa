package model

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netdev"
)

// Host sides of pods' interfaces: the first, and the second of a pod on the XDP datapath.
var (
	firstIf  = regexp.MustCompile(`^weft[0-9a-f]{10}$`)
	secondIf = regexp.MustCompile(`^wefx[0-9a-f]{10}$`)
)

// attached are the names of the programs on an interface that get what comes in, and what goes out.
func attached(l netlink.Link) (in, out []string, err error) {
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
		if in, err = addProgram(in, ebpf.ProgramID(xdp.ProgId)); err != nil {
			return nil, nil, err
		}
	}
	for _, at := range []struct {
		hook  ebpf.AttachType
		names *[]string
	}{{ebpf.AttachTCXIngress, &in}, {ebpf.AttachTCXEgress, &out}} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index,
			Attach: at.hook})
		if err != nil {
			return nil, nil, fmt.Errorf("programs of %s: %w", l.Attrs().Name, err)
		}
		for _, p := range found.Programs {
			if *at.names, err = addProgram(*at.names, p.ID); err != nil {
				return nil, nil, err
			}
		}
	}
	return in, out, nil
}

func addProgram(names []string, id ebpf.ProgramID) ([]string, error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, fmt.Errorf("program %d: %w", id, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return nil, fmt.Errorf("program %d: %w", id, err)
	}
	return append(names, info.Name), nil
}

// required are the hooks that an interface must have while it is up, if any.
func required(name string) (in, out string) {
	switch {
	case name == "w0":
		return "weft_from_wire", "weft_to_wire"
	case name == netdev.Sealer:
		return "weft_from_sealer", "weft_to_sealer"
	case firstIf.MatchString(name):
		return "weft_from_pod", "weft_to_pod"
	case secondIf.MatchString(name):
		return "weft_from_pod", "" // nothing is ever sent to a pod by it
	}
	return "", ""
}

// unhooked names the interfaces of a node that are up and lack a hook, and says whether its uplink
// is one of them.
func unhooked(h *host) (bad []string, uplink bool, err error) {
	err = h.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			name := l.Attrs().Name
			wantIn, wantOut := required(name)
			if wantIn == "" || l.Attrs().Flags&net.FlagUp == 0 {
				continue
			}
			in, out, err := attached(l)
			if err != nil {
				return err
			}
			if !slices.Contains(in, wantIn) || wantOut != "" && !slices.Contains(out, wantOut) {
				bad, uplink = append(bad,
					fmt.Sprintf("%s of node %s is up with %v in and %v out", name, h.Name, in,
						out)), uplink || name == "w0"
			}
		}
		return nil
	})
	return bad, uplink, err
}

// checkHooks holds every interface that is up to have its hooks: pods' at any time, an uplink while
// its agent runs, as soon as that has seen it. An uplink that was made anew while no agent ran is
// left to what passes by it.
func (w *world) checkHooks() error {
	var errs []error
	for _, h := range w.hosts {
		errs = append(errs, poll("hooks", func() error {
			bad, uplink, err := unhooked(h)
			switch {
			case err != nil: // a program went while it was looked at
				return err
			case len(bad) == 0:
				w.prober.with(func() { h.guarded = h.guarded || h.up })
				return nil
			case len(bad) == 1 && uplink && !(h.ready && h.alive()):
				return nil
			}
			return fmt.Errorf("%v", bad)
		}))
	}
	return errors.Join(errs...)
}
