package datapath

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestForeignMaster: the node reaches a pod behind a bond, a VRF or Open vSwitch by no interface
// that the port names.
func TestForeignMaster(t *testing.T) {
	b := newHarness(t)
	var refused error
	err := b.inside(func() error {
		master := netlink.NewLinkBond(netlink.LinkAttrs{Name: "wtbond"})
		if err := netlink.LinkAdd(master); err != nil {
			return err
		}
		defer netlink.LinkDel(master)
		port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtbp0"}, PeerName: "wtbp1"}
		if err := netlink.LinkAdd(port); err != nil {
			return err
		}
		defer netlink.LinkDel(port)
		if err := netlink.LinkSetMaster(port, master); err != nil {
			return err
		}
		outer, err := netlink.LinkByName("wtbp0")
		if err == nil {
			_, refused = ChainedGateway(outer)
		}
		return err
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("needs a kernel with bonds")
	}
	must(t, err)
	if refused == nil ||
		!strings.Contains(refused.Error(), "wtbp0 belongs to wtbond, which is a bond") {
		t.Errorf("gateway behind a bond: %v", refused)
	}
}
