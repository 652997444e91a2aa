package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the kernel routes that Weft makes (rtnetlink's rtm_protocol; 77 is free).
const RouteProtocol = 77

// unreachableMetric puts the unreachable routes behind every other route to the same range.
const unreachableMetric = 0xff00

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

// keepAdvertisements has an uplink go on taking router advertisements: a router ignores them unless told otherwise.
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

// replaceUnreachable gives the node's own ranges a last-resort route, so that packets for pods
// that do not exist are answered here instead of leaving by the default route. Callers hold d.mu.
func (d *Datapath) replaceUnreachable() error {
	d.unreachable = true
	for _, prefix := range d.opts.PodCIDRs {
		if err := netlink.RouteReplace(unreachable(prefix)); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("add unreachable route %s: %w", prefix, err)
		}
	}
	return nil
}

func toIPNet(prefix netip.Prefix) *net.IPNet {
	prefix = prefix.Masked()
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
