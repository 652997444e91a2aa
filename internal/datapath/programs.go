package datapath

import (
	"fmt"
	stdmaps "maps"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weft.dev/weft/internal/datapath/bpf"
)

// programs are the hooks' programs, loaded and not yet attached anywhere.
type programs struct {
	FromPodXDP, FromWireXDP *ebpf.Program
	FromPodTC, FromWireTC   *ebpf.Program
	ToPod, ToWire           *ebpf.Program
	FromHost                *ebpf.Program
	TagIn                   *ebpf.Program // behind XDP hooks
	PostRouting, PreRouting *ebpf.Program // nil unless packets are sealed
	closers                 []*ebpf.Collection

	// What only endpoints on the XDP road need is loaded with the first of them.
	mu         sync.Mutex
	fromSecond *ebpf.Program            // from_pod for second interfaces
	outs       map[uint32]*ebpf.Program // pod_out by its target's ifindex, which is mostly the same in all pods
	large      map[string]*ebpf.Program // XDP programs with xdp.frags by hook, if not all have it
}

// podOut returns the pod_out program for a target interface; the target is a constant in it.
func (p *programs) podOut(m *bpf.Maps, target uint32) (*ebpf.Program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if program := p.outs[target]; program != nil {
		return program, nil
	}
	collection, err := bpf.Load(m, "pod_out_tc", "weft_pod_out", map[string]any{"weft_out_ifindex": target}, false)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, collection)
	p.outs[target] = collection.Programs["weft_pod_out"]
	return p.outs[target], nil
}

// secondFromPod returns the from_pod program for second interfaces.
func (p *programs) secondFromPod(m *bpf.Maps, constants map[string]any) (*ebpf.Program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fromSecond != nil {
		return p.fromSecond, nil
	}
	constants["weft_second"] = uint8(1)
	collection, err := bpf.Load(m, "from_pod_tc", "weft_from_pod", constants, false)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, collection)
	p.fromSecond = collection.Programs["weft_from_pod"]
	return p.fromSecond, nil
}

func (p *programs) Close() {
	for _, c := range p.closers {
		c.Close()
	}
}

// constants are what the loader sets in every program of this datapath.
func (d *Datapath) constants() map[string]any {
	return map[string]any{"weft_sealing": bpf.Flag(d.opts.Encrypt != nil)}
}

// loadPrograms verifies and loads every hook's program on the shared maps. frags lets XDP see
// frames larger than a page.
func loadPrograms(m *bpf.Maps, constants map[string]any, frags bool) (*programs, error) {
	constants = stdmaps.Clone(constants)
	constants["weft_multi_buffer"] = bpf.Flag(frags)
	p := &programs{outs: map[uint32]*ebpf.Program{}}
	list := []struct {
		object, program string
		to              **ebpf.Program
	}{
		{"from_pod_xdp", "weft_from_pod", &p.FromPodXDP},
		{"from_wire_xdp", "weft_from_wire", &p.FromWireXDP},
		{"from_pod_tc", "weft_from_pod", &p.FromPodTC},
		{"from_wire_tc", "weft_from_wire", &p.FromWireTC},
		{"to_pod_tc", "weft_to_pod", &p.ToPod},
		{"to_wire_tc", "weft_to_wire", &p.ToWire},
		{"from_host_tc", "weft_from_host", &p.FromHost},
		{"tag_in_tc", "weft_tag_in", &p.TagIn},
		{"post_routing_tc", "weft_post_routing", &p.PostRouting},
		{"pre_routing_tc", "weft_pre_routing", &p.PreRouting},
	}
	if constants["weft_sealing"] == uint8(0) {
		list = list[:len(list)-2] // older kernels have no hooks for the last
	}
	for _, each := range list {
		collection, err := bpf.Load(m, each.object, each.program, constants, frags)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.closers = append(p.closers, collection)
		*each.to = collection.Programs[each.program]
	}
	return p, nil
}

// hook is a place where a program can be attached.
type hook struct {
	name    string // from_pod, to_pod…
	kind    string // one of the kinds below
	program *ebpf.Program
}

const (
	kindXDP        = "xdp"
	kindXDPGeneric = "xdpgeneric"
	kindTCIngress  = "tcingress"
	kindTCEgress   = "tcegress"
)

// attach makes a link of the right kind on the interface.
func (h hook) attach(ifindex int) (link.Link, error) {
	switch h.kind {
	case kindXDP, kindXDPGeneric:
		flags := link.XDPDriverMode
		if h.kind == kindXDPGeneric {
			flags = link.XDPGenericMode
		}
		return link.AttachXDP(link.XDPOptions{Program: h.program, Interface: ifindex, Flags: flags})
	case kindTCIngress, kindTCEgress:
		at := ebpf.AttachTCXIngress
		if h.kind == kindTCEgress {
			at = ebpf.AttachTCXEgress
		}
		// Before the programs of others, any of which may end the chain (TC_ACT_OK).
		return link.AttachTCX(link.TCXOptions{Program: h.program, Interface: ifindex, Attach: at, Anchor: link.Head()})
	}
	return nil, fmt.Errorf("no hook of kind %s", h.kind)
}
