package nexthop

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/nldump"
)

// nextHop is how a peer is reached now. entry.Ifindex is 0 if there is no route to it.
type nextHop struct {
	addr  netip.Addr
	entry bpf.Nexthop
}

// usable are the neighbour states in which the kernel itself would send to the address.
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE

// snapshot is what the kernel has at the start of a synchronisation.
type snapshot struct {
	neighbors map[neighborKey]neighbor
	links     map[int]*outLink
	// addresses are those of this node that its Node object does not list.
	addresses []netip.Addr
}

type neighborKey struct {
	ifindex int
	addr    netip.Addr
}

// neighbor is an entry of the kernel's.
type neighbor struct {
	mac [6]uint8
	// resolved says that mac can be sent to.
	resolved bool
	// managed says that somebody keeps the entry fresh: the kernel, or who made it permanent.
	managed bool
}

// outLink is an interface by which next hops are reached.
type outLink struct {
	netlink.Link
	takesXDP bool
}

// snapshot lists the kernel's neighbours, once for all nodes, and this node's addresses if asked
// to.
func (t *Table) snapshot(addresses bool) (*snapshot, error) {
	s := &snapshot{neighbors: map[neighborKey]neighbor{}, links: map[int]*outLink{}}
	list := t.host.Kernel.Neighbors
	if list == nil {
		list = func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) }
	}
	neighbors, err := nldump.Whole(list)
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbors {
		if addr, ok := netip.AddrFromSlice(n.IP); ok {
			s.neighbors[neighborKey{n.LinkIndex, addr.Unmap()}] = neighborOf(&n)
		}
	}
	if addresses {
		s.addresses, err = t.unlistedAddresses()
	}
	return s, err
}

func neighborOf(n *netlink.Neigh) neighbor {
	out := neighbor{managed: n.FlagsExt&netlink.NTF_EXT_MANAGED != 0 ||
		n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0}
	if n.State&usable != 0 && len(n.HardwareAddr) == 6 {
		out.mac, out.resolved = bpf.ToMAC(n.HardwareAddr), true
	}
	return out
}

// link finds an interface, once in a synchronisation.
func (s *snapshot) link(index int) (*outLink, error) {
	if l := s.links[index]; l != nil {
		return l, nil
	}
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find interface %d: %w", index, err)
	}
	s.links[index] = &outLink{l, netdev.TakesXDP(index)}
	return s.links[index], nil
}

// reach finds the path to addr, and sees to it that its next hop is kept fresh.
func (t *Table) reach(r *round, addr netip.Addr) (nextHop, error) {
	hop, err := t.resolve(r.kernel, addr)
	if t.opts.GenericXDP {
		hop.entry.Flags |= bpf.NexthopXdpOut // generic XDP redirects through the interface's ordinary transmit
	}
	if err != nil {
		return hop, err
	}
	key := neighborKey{int(hop.entry.Ifindex), hop.addr}
	entry := r.kernel.neighbors[key]
	if entry.managed {
		return hop, nil
	}
	if err := t.manageNeighbor(key); err != nil {
		return hop, err
	}
	entry.managed = true
	r.kernel.neighbors[key] = entry
	return hop, nil
}

// resolve finds the path to addr: route, interface, neighbour. Where packets are sealed, a path by
// an interface without hooks is none: what the stack sends there would leave as it is.
func (t *Table) resolve(s *snapshot, addr netip.Addr) (nextHop, error) {
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
	l, err := s.link(routes[0].LinkIndex)
	if err != nil {
		return nextHop{}, err
	}
	if t.opts.Sealing && !slices.Contains(t.opts.Uplinks, l.Attrs().Name) {
		return nextHop{}, fmt.Errorf("the kernel's route leads out of %s, which is no uplink (%s): nothing is sent there; add it to uplinks in the agent's configuration, or route the node by an uplink",
			l.Attrs().Name, strings.Join(t.opts.Uplinks, ", "))
	}
	hop.entry = bpf.Nexthop{Ifindex: uint32(l.Attrs().Index),
		Mtu: uint16(min(l.Attrs().MTU, 65535)), Smac: bpf.ToMAC(l.Attrs().HardwareAddr)}
	if l.takesXDP {
		hop.entry.Flags |= bpf.NexthopXdpOut
	}
	entry := s.neighbors[neighborKey{l.Attrs().Index, hop.addr}]
	if entry.resolved && l.Attrs().OperState != netlink.OperDown {
		hop.entry.Flags |= bpf.NexthopResolved
		hop.entry.Dmac = entry.mac
	}
	return hop, nil
}

// manageNeighbor hands a neighbour to the kernel as managed: it resolves the address and keeps it
// fresh, and tells by netlink events.
func (t *Table) manageNeighbor(key neighborKey) error {
	if err := t.host.Undo.NoteNeighbor(key.addr); err != nil {
		return err
	}
	family := netlink.FAMILY_V4
	if key.addr.Is6() {
		family = netlink.FAMILY_V6
	}
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: key.ifindex, Family: family, IP: key.addr.AsSlice(), State: unix.NUD_NONE,
		FlagsExt: netlink.NTF_EXT_MANAGED,
	})
	if err != nil {
		return fmt.Errorf("make %s a managed neighbour: %w", key.addr, err)
	}
	return nil
}

// IsNextHop says whether some node is reached through an address.
func (t *Table) IsNextHop(addr netip.Addr) bool {
	t.work.Lock()
	defer t.work.Unlock()
	_, is := t.hops[addr]
	return is
}

// NeighborChanged applies one neighbour event to the nodes that are reached through it. It waits
// for a synchronisation that runs, which may have seen less.
func (t *Table) NeighborChanged(n netlink.NeighUpdate) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return
	}
	t.work.Lock()
	defer t.work.Unlock()
	changed := false
	for _, index := range t.hops[addr.Unmap()] {
		var entry bpf.Nexthop
		if err := t.maps.Nexthops.Lookup(index, &entry); err != nil ||
			int(entry.Ifindex) != n.LinkIndex {
			continue
		}
		if now := neighborOf(&n.Neigh); n.Type == unix.RTM_NEWNEIGH && now.resolved {
			entry.Flags |= bpf.NexthopResolved
			entry.Dmac = now.mac
		} else if n.State&unix.NUD_INCOMPLETE == 0 || entry.Flags&bpf.NexthopResolved != 0 {
			entry.Flags &^= bpf.NexthopResolved
		}
		moved, err := t.putNextHop(index, entry)
		if err != nil {
			t.log.Warn("neighbour", "address", addr, "err", err)
		}
		changed = changed || moved
	}
	if changed {
		if err := t.host.Void(); err != nil {
			t.log.Warn("neighbour", "address", addr, "err", err)
		}
	}
}
