// Package netdev makes, configures and removes Weft's network interfaces, and remembers what it
// changed of those of others so that it can be put back. Which addresses and routes they have is no
// business of its.
package netdev

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pair is an interface of this network namespace and its other end.
type Pair struct {
	Name, Peer string
	// MTU is both ends'.
	MTU int
	// MAC and PeerMAC are the kernel's choice where they are nil.
	MAC, PeerMAC net.HardwareAddr
	// PeerNS is where the other end belongs, nil for this namespace.
	PeerNS *os.File
}

// ErrExists means that the other end's name is taken where it belongs.
var ErrExists = errors.New("there is an interface of that name already")

// Device makes the pairs of one kind of interface.
type Device interface {
	// Make makes both ends at once, each where it belongs and under its own name, so that no
	// interface is ever seen half named or in a wrong namespace. Neither is up.
	Make(h *netlink.Handle, p Pair) error
	// Is tells whether an interface is of this kind.
	Is(l netlink.Link) bool
	// Ends tells whether two interfaces are each other's ends. Indexes repeat across namespaces, so
	// each must name the other.
	Ends(a, b netlink.Link) bool
}

// Veth makes veth pairs.
var Veth Device = veth{}

type veth struct{}

func (veth) Make(h *netlink.Handle, p Pair) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = p.Name, p.MTU, p.MAC
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: p.Peer, PeerHardwareAddr: p.PeerMAC}
	if p.PeerNS != nil {
		pair.PeerNamespace = netlink.NsFd(int(p.PeerNS.Fd()))
	}
	err := h.LinkAdd(pair)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create veth pair %s, %s: %w", p.Name, p.Peer, ErrExists)
	}
	if err != nil {
		return fmt.Errorf("create veth pair %s: %w", p.Name, err)
	}
	return nil
}

func (veth) Is(l netlink.Link) bool { return l.Type() == "veth" }

func (v veth) Ends(a, b netlink.Link) bool {
	return v.Is(a) && v.Is(b) && a.Attrs().ParentIndex == b.Attrs().Index &&
		b.Attrs().ParentIndex == a.Attrs().Index
}

// PeerIndex is the index that an end has of the other, in the other's network namespace.
func PeerIndex(l netlink.Link) int { return l.Attrs().ParentIndex }
