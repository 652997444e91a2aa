package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/netdev"
)

// nextHop is how a peer is reached now. entry.Ifindex is 0 if there is no route to it.
type nextHop struct {
	addr      netip.Addr
	entry     bpf.Nexthop
	unmanaged bool // nobody keeps its neighbour entry fresh yet
}

// usable are the neighbour states in which the kernel itself would send to the address.
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE

// resolve asks the kernel for the path to addr: route, interface, neighbour. Where packets are sealed, a path by an
// interface without hooks is none: what the stack sends there would leave as it is.
func (d *Datapath) resolve(addr netip.Addr) (nextHop, error) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil {
		return nextHop{}, fmt.Errorf("no route: %w", err)
	}
	if len(routes) == 0 {
		return nextHop{}, errors.New("no route")
	}
	hop := nextHop{addr: addr}
	if gw, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		hop.addr = gw.Unmap()
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return nextHop{}, fmt.Errorf("find interface %d: %w", routes[0].LinkIndex, err)
	}
	if d.opts.Encrypt != nil && !slices.Contains(d.opts.Uplinks, l.Attrs().Name) {
		return nextHop{}, fmt.Errorf("the kernel's route leads out of %s, which is no uplink (%s): nothing is sent there; add it to uplinks in the agent's configuration, or route the node by an uplink",
			l.Attrs().Name, strings.Join(d.opts.Uplinks, ", "))
	}
	hop.entry = bpf.Nexthop{Ifindex: uint32(l.Attrs().Index), Mtu: uint16(min(l.Attrs().MTU, 65535)), Smac: bpf.ToMAC(l.Attrs().HardwareAddr)}
	if netdev.TakesXDP(l.Attrs().Index) {
		hop.entry.Flags |= bpf.NexthopXdpOut
	}
	mac, managed, err := lookupNeighbor(hop.addr, l.Attrs().Index)
	if err != nil {
		return hop, err
	}
	if mac != nil && l.Attrs().OperState != netlink.OperDown {
		hop.entry.Flags |= bpf.NexthopResolved
		hop.entry.Dmac = bpf.ToMAC(mac)
	}
	hop.unmanaged = !managed
	return hop, nil
}

// lookupNeighbor returns the link-layer address if it is usable, and whether somebody keeps the entry
// fresh already: the kernel (managed) or whoever made it permanent.
func lookupNeighbor(addr netip.Addr, ifindex int) (mac net.HardwareAddr, managed bool, err error) {
	list, err := netlink.NeighList(ifindex, netlinkFamily(addr))
	if err != nil {
		return nil, false, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range list {
		if !n.IP.Equal(addr.AsSlice()) {
			continue
		}
		managed = n.FlagsExt&netlink.NTF_EXT_MANAGED != 0 || n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0
		if n.State&usable != 0 && len(n.HardwareAddr) == 6 {
			mac = n.HardwareAddr
		}
		return mac, managed, nil
	}
	return nil, false, nil
}

// manageNeighbor hands a neighbour to the kernel as managed: it resolves the address and keeps it
// fresh, and tells by netlink events.
func (d *Datapath) manageNeighbor(addr netip.Addr, ifindex int) error {
	if err := d.undo.NoteNeighbor(addr); err != nil {
		return err
	}
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: ifindex, Family: netlinkFamily(addr), IP: addr.AsSlice(), State: unix.NUD_NONE,
		FlagsExt: netlink.NTF_EXT_MANAGED,
	})
	if err != nil {
		return fmt.Errorf("make %s a managed neighbour: %w", addr, err)
	}
	return nil
}

func netlinkFamily(a netip.Addr) int {
	if a.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// errUnsubscribed says that the library gave a subscription up, mostly since its socket overflowed. The caller subscribes anew.
var errUnsubscribed = errors.New("the kernel's events were cut off")

func (d *Datapath) refreshNodes() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodes.list == nil {
		return // before the first SetNodes nothing is known: what a previous run left must stay
	}
	have, err := d.readRoutes()
	if err == nil {
		err = errors.Join(d.syncOwnAddresses(have), d.syncNodes(have))
	}
	if err != nil {
		d.log.Warn("peers", "err", err)
	}
}

// neighborChanged applies one neighbour event to the nodes that are reached through it.
func (d *Datapath) neighborChanged(n netlink.NeighUpdate) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := false
	for _, index := range d.nodes.hops[addr.Unmap()] {
		var entry bpf.Nexthop
		if err := d.maps.Nexthops.Lookup(index, &entry); err != nil || int(entry.Ifindex) != n.LinkIndex {
			continue
		}
		if n.Type == unix.RTM_NEWNEIGH && n.State&usable != 0 && len(n.HardwareAddr) == 6 {
			entry.Flags |= bpf.NexthopResolved
			entry.Dmac = bpf.ToMAC(n.HardwareAddr)
		} else if n.State&unix.NUD_INCOMPLETE == 0 || entry.Flags&bpf.NexthopResolved != 0 {
			entry.Flags &^= bpf.NexthopResolved
		}
		moved, err := d.putNode(index, entry)
		if err != nil {
			d.log.Warn("neighbour", "address", addr, "err", err)
		}
		changed = changed || moved
	}
	if changed {
		if err := d.changed(); err != nil {
			d.log.Warn("neighbour", "address", addr, "err", err)
		}
	}
}
