package hook

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attach makes a link of the right kind on the interface.
func (a Attachment) attach(ifindex int) (link.Link, error) {
	switch a.Kind {
	case XDP, XDPGeneric:
		flags := link.XDPDriverMode
		if a.Kind == XDPGeneric {
			flags = link.XDPGenericMode
		}
		return link.AttachXDP(link.XDPOptions{Program: a.Program, Interface: ifindex, Flags: flags})
	case TCIngress, TCEgress:
		at := ebpf.AttachTCXIngress
		if a.Kind == TCEgress {
			at = ebpf.AttachTCXEgress
		}
		// Before the programs of others, any of which may end the chain (TC_ACT_OK).
		return link.AttachTCX(link.TCXOptions{Program: a.Program, Interface: ifindex, Attach: at,
			Anchor: link.Head()})
	}
	return nil, fmt.Errorf("no hook of kind %s", a.Kind)
}

// The kernel takes an XDP program without xdp.frags only where frames fit a page. Whether programs
// are loaded with it follows the uplinks' MTU; a pod's interface may have a larger one, such as
// that of uplinks before theirs was lowered. Such an interface gets a variant of its own.

// Attach makes a link of the hook's program, or of its variant for large frames where only that
// fits.
func (p *Programs) Attach(a Attachment, ifindex int) (link.Link, error) {
	attached, err := a.attach(ifindex)
	if err == nil || !wantsFrags(a, err) {
		return attached, err
	}
	large, loadErr := p.withFrags(a.Name)
	if loadErr != nil {
		return nil, errors.Join(err, loadErr)
	}
	a.Program = large
	return a.attach(ifindex)
}

// Update replaces a link's program likewise. After a failure the link has the program that it had.
func (p *Programs) Update(pinned link.Link, a Attachment) error {
	err := pinned.Update(a.Program)
	if err == nil || !wantsFrags(a, err) {
		return err
	}
	large, loadErr := p.withFrags(a.Name)
	if loadErr != nil {
		return errors.Join(err, loadErr)
	}
	return pinned.Update(large)
}

// wantsFrags tells whether the kernel refused an XDP program for want of xdp.frags. Drivers
// answer differently: veth ERANGE, others EINVAL or EOPNOTSUPP.
func wantsFrags(a Attachment, err error) bool {
	return (a.Kind == XDP || a.Kind == XDPGeneric) &&
		(errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EINVAL) ||
			errors.Is(err, unix.EOPNOTSUPP))
}
