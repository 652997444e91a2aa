package model

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// The default routes' next hops: the machine out.
var gateways = [2]netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}

// route gives a node its default routes, as its network manager would.
func (h *host) route() error {
	return h.Do(func() error {
		l, err := netlink.LinkByName("w0")
		if err != nil {
			return err
		}
		for _, gw := range gateways {
			all := &net.IPNet{IP: make([]byte, gw.BitLen()/8), Mask: make([]byte, gw.BitLen()/8)}
			if err := netlink.RouteReplace(&netlink.Route{Dst: all, Gw: gw.AsSlice(),
				LinkIndex: l.Attrs().Index}); err != nil {
				return fmt.Errorf("default route of node %s via %s: %w", h.Name, gw, err)
			}
		}
		return nil
	})
}

// setUplink sets a node's uplink up or down.
func (w *world) setUplink(h *host, up bool) error {
	err := h.Do(func() error {
		l, err := netlink.LinkByName("w0")
		if err != nil {
			return err
		}
		if up {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	})
	if err != nil {
		return fmt.Errorf("uplink of node %s: %w", h.Name, err)
	}
	h.up, w.watch.down[h.port] = up, !up
	if up {
		return h.route()
	}
	return nil
}

// deleteUplink removes a node's uplink, and with it the wire's port.
func (w *world) deleteUplink(h *host) error {
	w.prober.with(func() { h.mac, h.guarded, h.up = nil, false, false })
	err := h.Do(func() error {
		l, err := netlink.LinkByName("w0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	if err != nil {
		return fmt.Errorf("remove uplink of node %s: %w", h.Name, err)
	}
	return w.watch.close(h.port)
}

// makeUplink makes a node's uplink anew, under the same name and with its addresses and routes.
func (w *world) makeUplink(h *host) error {
	node, err := os.Open(h.NetNS)
	if err != nil {
		return err
	}
	defer node.Close()
	port := fmt.Sprintf("p%d", h.port)
	err = netns.Do(w.watch.ns, func() error {
		bridge, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: port, MTU: 1500, Index: portIndex + h.port,
				MasterIndex: bridge.Attrs().Index},
			PeerName: "w0", PeerNamespace: netlink.NsFd(int(node.Fd())), PeerMTU: 1500,
		})
	})
	if err == nil {
		err = w.watch.open(h.port) // before the first frame can pass
	}
	if err == nil {
		err = netns.Do(w.watch.ns, func() error { return setUp(port, nil) })
	}
	if err == nil {
		err = h.Do(func() error { return setUp("w0", h.prefixes()) })
	}
	if err == nil {
		err = h.route()
	}
	if err != nil {
		return fmt.Errorf("make uplink of node %s: %w", h.Name, err)
	}
	h.up, w.watch.down[h.port] = true, false
	var readErr error
	w.prober.with(func() { readErr = h.readMAC() })
	return readErr
}

func (h *host) prefixes() []string {
	return []string{h.Addresses[0].String() + "/24", h.Addresses[1].String() + "/64"}
}

// setUp makes an end of a wire as the lab does: addresses at once, GRO on (a frame that XDP
// redirects arrives by NAPI only), what needs offload off.
func setUp(name string, addresses []string) error {
	if err := nettest.Up(name, addresses...); err != nil {
		return err
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	return tool.Change(name, map[string]bool{
		"rx-gro": true, "tx-tcp-segmentation": false, "tx-tcp6-segmentation": false,
		"tx-tcp-mangleid-segmentation": false,
		"tx-udp-segmentation":          false, "tx-generic-segmentation": false,
		"tx-checksum-ip-generic": false,
	})
}
