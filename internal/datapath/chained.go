package datapath

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
)

// ChainedGateway is the interface by which the host's stack and a pod behind another plugin's
// interface reach each other: that interface itself, or the bridge which it is a port of.
func ChainedGateway(outer netlink.Link) (netlink.Link, error) {
	index := outer.Attrs().MasterIndex
	if index == 0 {
		return outer, nil
	}
	master, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find the bridge of %s: %w", outer.Attrs().Name, err)
	}
	if master.Type() != "bridge" {
		return nil, fmt.Errorf("%s belongs to %s, which is a %s: Weft can follow plugins that connect pods by a Linux bridge, or by a veth alone",
			outer.Attrs().Name, master.Attrs().Name, master.Type())
	}
	return master, nil
}

// checkChainedRoute refuses a pod whose bridge has its gateway on another interface, as the bridge
// plugin's has with a vlan: what the node and such a pod send each other passes the bridge's other
// ports, from where nothing is believed.
func checkChainedRoute(ep Endpoint, bridge netlink.Link) error {
	for _, a := range ep.Addresses() {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err != nil || len(routes) == 0 {
			continue // the node has no address of that family
		}
		if by, err := netlink.LinkByIndex(routes[0].LinkIndex); err == nil &&
			isOnBridge(by, bridge.Attrs().Index) {
			return fmt.Errorf("the gateway of %s is on %s instead of on its bridge %s (a vlan of the bridge plugin?): with encryption Weft cannot tell there who sends; give the bridge the gateway's address",
				ep.HostIf, by.Attrs().Name, bridge.Attrs().Name)
		}
	}
	return nil
}

// isOnBridge tells whether an interface is a VLAN of a bridge, or a veth whose other end is a port
// of it.
func isOnBridge(link netlink.Link, bridge int) bool {
	switch link.Type() {
	case "vlan":
		return link.Attrs().ParentIndex == bridge
	case "veth":
		peer, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
		return err == nil && peer.Type() == "veth" &&
			peer.Attrs().ParentIndex == link.Attrs().Index && peer.Attrs().MasterIndex == bridge
	default:
		return false
	}
}

// gatewayIndex is the index of a chained endpoint's gateway interface; 0 where that is its own host
// side, and for all other endpoints.
func gatewayIndex(ep Endpoint, ifindex int) (uint32, error) {
	if !ep.Chained {
		return 0, nil
	}
	outer, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return 0, fmt.Errorf("find interface %d: %w", ifindex, err)
	}
	return uint32(outer.Attrs().MasterIndex), nil
}

// checkChained refuses a new endpoint of another plugin's that Weft cannot follow. One that is
// entered already keeps what works for it.
func (d *Datapath) checkChained(ep Endpoint, host netlink.Link) error {
	if !ep.Chained || d.checkInterface(ep, uint32(host.Attrs().Index)) == nil {
		return nil
	}
	gateway, err := ChainedGateway(host)
	if err == nil && gateway.Attrs().Index != host.Attrs().Index && d.opts.Encrypt != nil {
		err = checkChainedRoute(ep, gateway)
	}
	return err
}

// checkGateway compares the gateway interface of a chained endpoint with what the programs know.
func (d *Datapath) checkGateway(ep Endpoint, ifindex int) error {
	want, err := gatewayIndex(ep, ifindex)
	if err != nil {
		return err
	}
	var slot bpf.EpSlot
	if err := d.maps.EpSlot.Lookup(uint32(ep.Slot), &slot); err != nil || slot.Bridge != want {
		return fmt.Errorf("the stack reaches %s by interface %d, and by %d in the maps", ep.HostIf,
			want, slot.Bridge)
	}
	return nil
}
