package datapath

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// The kernel takes an XDP program without xdp.frags only where frames fit a page. Whether programs are loaded
// with it follows the uplinks' MTU; a pod's interface may have a larger one, such as that of uplinks
// before theirs was lowered. Such an interface gets a variant of its own.

// attach makes a link of the hook's program, or of its variant for large frames where only that fits.
func (d *Datapath) attach(h hook, ifindex int) (link.Link, error) {
	attached, err := h.attach(ifindex)
	if err == nil || !wantsFrags(h, err) {
		return attached, err
	}
	large, loadErr := d.progs.withFrags(d.maps, d.constants(), h.name)
	if loadErr != nil {
		return nil, errors.Join(err, loadErr)
	}
	h.program = large
	return h.attach(ifindex)
}

// update replaces a link's program likewise. After a failure the link has the program that it had.
func (d *Datapath) update(pinned link.Link, h hook) error {
	err := pinned.Update(h.program)
	if err == nil || !wantsFrags(h, err) {
		return err
	}
	large, loadErr := d.progs.withFrags(d.maps, d.constants(), h.name)
	if loadErr != nil {
		return errors.Join(err, loadErr)
	}
	return pinned.Update(large)
}

// wantsFrags tells whether the kernel refused an XDP program for want of xdp.frags. Drivers
// answer differently: veth ERANGE, others EINVAL or EOPNOTSUPP.
func wantsFrags(h hook, err error) bool {
	return (h.kind == kindXDP || h.kind == kindXDPGeneric) &&
		(errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP))
}

// withFrags returns the XDP program of a hook loaded with xdp.frags.
func (p *programs) withFrags(m *bpf.Maps, constants map[string]any, hookName string) (*ebpf.Program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if program := p.large[hookName]; program != nil {
		return program, nil
	}
	constants["weft_multi_buffer"] = bpf.Flag(true)
	collection, err := bpf.Load(m, hookName+"_xdp", "weft_"+hookName, constants, true)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, collection)
	if p.large == nil {
		p.large = map[string]*ebpf.Program{}
	}
	p.large[hookName] = collection.Programs["weft_"+hookName]
	return p.large[hookName], nil
}
