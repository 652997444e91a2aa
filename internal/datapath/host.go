package datapath

import (
	"os"

	"github.com/vishvananda/netlink"
)

// maxPage is the largest MTU whose frames fit one page with XDP's room around them.
const maxPage = 3400

// prepareHost makes the node a router, as the fallback for everything the hooks leave to the stack.
func (d *Datapath) prepareHost() error {
	if err := d.undo.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return nil // no IPv6 on this node
	}
	for _, name := range d.opts.Uplinks {
		if err := d.keepAdvertisements(name); err != nil {
			return err
		}
	}
	return d.undo.SetSysctl("net/ipv6/conf/all/forwarding", "1")
}

// keepAdvertisements has an uplink go on taking router advertisements: a router ignores them unless
// told otherwise.
func (d *Datapath) keepAdvertisements(name string) error {
	value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/accept_ra")
	if err != nil || value[0] != '1' {
		return nil
	}
	return d.undo.SetSysctl("net/ipv6/conf/"+name+"/accept_ra", "2")
}

// needsFrags tells whether some uplink carries frames larger than a page.
func (d *Datapath) needsFrags() bool {
	for _, name := range d.opts.Uplinks {
		if l, err := netlink.LinkByName(name); err == nil && l.Attrs().MTU > maxPage {
			return true
		}
	}
	return false
}
