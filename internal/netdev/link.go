package netdev

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrGone is in the error when a thing is certainly not there any more, as opposed to when it could
// not be looked at.
var ErrGone = errors.New("gone")

// Handle opens netlink in this thread's network namespace; close it.
func Handle() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// HandleAt opens netlink in a pod's network namespace; close it.
func HandleAt(ns *os.File) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in pod: %w", err)
	}
	return h, nil
}

// FindOnNode finds an interface of the node.
func FindOnNode(name string) (netlink.Link, error) {
	h, err := Handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return Find(h, name, "on the node")
}

// Find is LinkByName that says where it looked, with ErrGone if there is none.
func Find(h *netlink.Handle, name, where string) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, fmt.Errorf("interface %s is missing %s (%w)", name, where, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("find interface %s %s: %w", name, where, err)
	}
	return link, nil
}

// ExistsOnNode tells whether the node has an interface, or may have it.
func ExistsOnNode(name string) bool {
	_, err := FindOnNode(name)
	return !errors.Is(err, ErrGone)
}

// DeleteOnNode removes an interface of the node, which may be gone already.
func DeleteOnNode(name string) error {
	h, err := Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	return Delete(h, name)
}

// Delete removes an interface, which may be gone already, and its other end with it.
func Delete(h *netlink.Handle, name string) error {
	link, err := Find(h, name, "on the node")
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err == nil {
		err = h.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// SetUp sets an interface up and looks at it again: the kernel acts on a new carrier when it is
// asked for it, else up to a second later, and until then it drops what is sent.
func SetUp(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, fmt.Errorf("set %s up: %w", name, err)
	}
	return netlink.LinkByName(name)
}

// SetDown sets an interface down, if it is there.
func SetDown(name string) error {
	l, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = netlink.LinkSetDown(l)
	}
	if err != nil {
		return fmt.Errorf("set %s down: %w", name, err)
	}
	return nil
}

// IsUp tells whether an interface is set up.
func IsUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }
