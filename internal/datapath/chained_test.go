package datapath

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestForeignMaster: the node reaches a pod behind a bond, a VRF or Open vSwitch by no interface that the port names.
func TestForeignMaster(t *testing.T) {
	b := newBed(t)
	must(t, b.inside(func() error {
		master := netlink.NewLinkBond(netlink.LinkAttrs{Name: "wtbond"})
		if err := netlink.LinkAdd(master); errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("needs a kernel with bonds")
		} else if err != nil {
			return err
		}
		port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtbp0"}, PeerName: "wtbp1"}
		if err := errors.Join(netlink.LinkAdd(port), netlink.LinkSetMaster(port, master)); err != nil {
			return err
		}
		outer, err := netlink.LinkByName("wtbp0")
		if err != nil {
			return err
		}
		if _, err = ChainedGateway(outer); err == nil || !strings.Contains(err.Error(), "wtbp0 belongs to wtbond, which is a bond") {
			t.Errorf("gateway behind a bond: %v", err)
		}
		return nil
	}))
}
