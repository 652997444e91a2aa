package kernels

import (
	"os"

	"github.com/vishvananda/netlink"
)

// moveLink moves an interface of the thread's namespace to another.
func moveLink(name, ns string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	target, err := os.Open(ns)
	if err != nil {
		return err
	}
	defer target.Close()
	return netlink.LinkSetNsFd(link, int(target.Fd()))
}
