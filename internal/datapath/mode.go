package datapath

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/hook"
)

// MinimumKernel is the oldest kernel that has every feature Weft hooks with (TCX links).
const MinimumKernel = "6.6"

// checkBPFFS makes sure that pins will be pins: on any other file system they would vanish.
func checkBPFFS(dir string) error {
	for probe := dir; ; {
		var st unix.Statfs_t
		err := unix.Statfs(probe, &st)
		if err == nil {
			if st.Type != unix.BPF_FS_MAGIC {
				return fmt.Errorf("%s is not on a BPF file system: mount one with `mount -t bpf bpf /sys/fs/bpf`", dir)
			}
			return nil
		}
		if !os.IsNotExist(err) || probe == "/" {
			return fmt.Errorf("look at %s: %w", probe, err)
		}
		probe = parent(probe)
	}
}

func parent(path string) string {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '/' {
			return path[:i]
		}
	}
	return "/"
}

// chooseMode turns the asked mode into one that this kernel can do, and says why.
func chooseMode(opts Options) (ModeStatus, error) {
	status := ModeStatus{Asked: opts.Mode, Active: opts.Mode}
	if err := probeTCX(); err != nil {
		return status, fmt.Errorf("this kernel lacks TCX links, which every mode needs: Linux %s or later is required: %w", MinimumKernel, err)
	}
	switch opts.Mode {
	case ModeXDP:
		status.Why = "configured: native XDP on every interface"
		if opts.GenericXDP {
			status.Why = "configured: generic XDP on every interface"
		}
	case ModeTC, ModeStack:
		status.Why = "configured"
	case ModeAuto, "":
		status.Asked, status.Active = ModeAuto, ModeTC
		status.XDPDatapath, status.Why = probeXDPDatapath()
	default:
		return status, fmt.Errorf("mode %q: want auto, xdp, tc or stack", opts.Mode)
	}
	return status, nil
}

// probeXDPDatapath tells whether this kernel can do the XDP datapath, and what that makes of mode
// auto. TC is what docs/benchmarks.md measured as best for pods' sockets: it keeps the GSO packets
// of their stacks whole.
func probeXDPDatapath() (bool, string) {
	if err := features.HaveProgramHelper(ebpf.XDP, asm.FnRedirect); err != nil {
		return false, "TC on every interface; no XDP datapath for pods that ask, since the kernel has no XDP redirect"
	}
	return true, "TC on every interface; native XDP beside it for pods that ask for the XDP datapath"
}

// PodDatapath says by which datapath an endpoint's packets go, and why.
func (d *Datapath) PodDatapath(ep Endpoint) PodDatapath {
	path := PodDatapath{Name: string(d.mode.Active), Why: "mode " + string(d.mode.Asked)}
	switch {
	case !ep.XDPDatapath || d.mode.Active == ModeXDP:
		return path
	case d.hasXDPDatapath(ep):
		return PodDatapath{Name: DatapathXDP, Why: "asked for"}
	}
	path.Refused = true
	switch {
	case ep.Network != 0:
		path.Why = "asked for xdp, which pods of the cluster's network get alone"
	case ep.Chained:
		path.Why = "asked for xdp, which an interface of another CNI plugin cannot have"
	case d.mode.Asked != ModeAuto:
		path.Why = "asked for xdp, which pods get in modes auto and xdp: this node's is " +
			string(d.mode.Asked)
	default:
		path.Why = "asked for xdp, which this kernel cannot do: it has no XDP redirect"
	}
	return path
}

// DatapathXDP is the name of the XDP datapath.
const DatapathXDP = "xdp"

// hasXDPDatapath tells whether an endpoint has a second interface, and native XDP on its first.
func (d *Datapath) hasXDPDatapath(ep Endpoint) bool {
	return ep.XDPDatapath && d.mode.XDPDatapath && !ep.Chained && ep.Network == 0
}

// probeTCX attaches a program that does nothing to the loopback and takes it away again.
func probeTCX() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "weft_probe", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load a probe program: %w", err)
	}
	defer program.Close()
	l, err := link.AttachTCX(link.TCXOptions{Program: program, Interface: 1,
		Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return err
	}
	return l.Close()
}

// hooksFor says what is attached to the host side of an endpoint's interface.
func (d *Datapath) hooksFor(ep Endpoint) []hook.Attachment {
	way := d.wayOfNode()
	if d.hasXDPDatapath(ep) {
		way = hook.ByXDP
	}
	return d.progs.At(hook.Pod, way)
}

// uplinkHooks says what is attached to an uplink. An XDP program on one end of a veth takes
// GSO from the other end, and TC gets packets that the NIC or GRO has merged: only
// mode xdp hooks uplinks by XDP.
func (d *Datapath) uplinkHooks() []hook.Attachment { return d.progs.At(hook.Uplink, d.wayOfNode()) }

// wayOfNode is the way of all interfaces that have no datapath of their own.
func (d *Datapath) wayOfNode() hook.Way {
	switch {
	case d.mode.Active != ModeXDP:
		return hook.ByTC
	case d.opts.GenericXDP:
		return hook.ByGenericXDP
	}
	return hook.ByXDP
}
