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
	if err := d.undo.setSysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return nil // no IPv6 on this node
	}
	for _, name := range d.opts.Uplinks {
		// A router ignores router advertisements unless told otherwise: keep the node's own.
		if value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/accept_ra"); err == nil && value[0] == '1' {
			if err := d.undo.setSysctl("net/ipv6/conf/"+name+"/accept_ra", "2"); err != nil {
				return err
			}
		}
	}
	return d.undo.setSysctl("net/ipv6/conf/all/forwarding", "1")
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

func (d *Datapath) attachUplinks() error {
	for _, name := range d.opts.Uplinks {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find uplink %s: %w (set uplinks in the agent's configuration)", name, err)
		}
		if err := d.setUplinkOffloads(l); err != nil {
			return err
		}
		hooks := d.uplinkHooks()
		for _, h := range hooks {
			if err := d.ensureLink(h, name, l.Attrs().Index); err != nil {
				return err
			}
		}
		if err := d.dropLinks(name, hooks...); err != nil {
			return err
		}
	}
	return nil
}

// replaceUnreachable gives the node's own ranges a last-resort route, so that packets for pods
// that do not exist are answered here instead of leaving by the default route.
func (d *Datapath) replaceUnreachable() error {
	for _, prefix := range d.opts.PodCIDRs {
		route := &netlink.Route{
			Dst: toIPNet(prefix), Type: unix.RTN_UNREACHABLE, Protocol: RouteProtocol, Priority: unreachableMetric,
		}
		if prefix.Addr().Is6() {
			// The kernel wants a device even for routes that lead nowhere.
			route.LinkIndex = 1
		}
		if err := netlink.RouteReplace(route); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("add unreachable route %s: %w", prefix, err)
		}
	}
	return nil
}

func toIPNet(prefix netip.Prefix) *net.IPNet {
	prefix = prefix.Masked()
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
