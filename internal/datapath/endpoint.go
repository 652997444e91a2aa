package datapath

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// AttachEndpoint hooks an endpoint's interface and makes it reachable. It can be called again for the
// same endpoint, for instance after a restart: programs are then replaced under traffic. When the
// mode changes, the order keeps every packet whole: what the new mode needs is there before its hooks, what
// the old one needed goes after its hooks.
func (d *Datapath) AttachEndpoint(ep Endpoint) error {
	defer d.hurry.begin()()
	host, err := netlink.LinkByName(ep.HostIf)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", ep.HostIf, err)
	}
	if err := d.setOffloads(ep, keepOld); err != nil {
		return err
	}
	ifindexes := []int{host.Attrs().Index}
	hybrid := d.mode.Active == ModeHybrid && !ep.Chained
	if hybrid {
		second, err := d.ensureSecondInterface(ep, host)
		if err != nil {
			return err
		}
		ifindexes = append(ifindexes, second)
	}
	// Maps before hooks: a hook refuses what comes from an interface that the maps do not know.
	if err := d.putEndpoint(ep, ifindexes); err != nil {
		return err
	}
	if hybrid {
		if err := d.openSecondInterface(ep, ifindexes[1]); err != nil {
			return err
		}
	}
	if err := d.attachHooks(ep, ifindexes[0]); err != nil {
		return err
	}
	if !hybrid {
		if err := d.removeSecondInterface(ep); err != nil {
			return err
		}
	}
	return d.setOffloads(ep, restoreOld)
}

// attachHooks makes the mode's hooks, and no others, the ones of the interface's host side.
func (d *Datapath) attachHooks(ep Endpoint, ifindex int) error {
	hooks := d.hooksFor(ep)
	for _, h := range hooks {
		if err := d.ensureLink(h, ep.HostIf, ifindex); err != nil {
			return err
		}
	}
	// pod_out's pin is named after this interface, too, but is removeSecondInterface's business.
	return d.dropLinks(ep.HostIf, append(hooks, hook{name: "pod_out", kind: kindTCEgress})...)
}

// DetachEndpoint takes an endpoint's hooks and map entries away. It is not an error if some, or the
// interface itself, are gone already.
func (d *Datapath) DetachEndpoint(ep Endpoint) error {
	defer d.hurry.begin()()
	err := errors.Join(d.forgetEndpoint(ep), d.removeSecondInterface(ep), d.dropLinks(ep.HostIf))
	if restoreErr := d.undo.applyOffloads(ep.HostIf, ep.NetNS, ep.PodIf, nil, restoreOld); restoreErr != nil {
		// The pod's namespace, or its interface, is mostly gone by now: nothing left to put back.
		d.log.Debug("put back offloads", "interface", ep.HostIf, "err", restoreErr)
	}
	return errors.Join(err, d.undo.setOffloads(ep.HostIf, offloads{}))
}

// Prune removes the links and map entries of endpoints that are not in keep: what is left of
// endpoints that went away while no agent ran. From here on every endpoint of this node is known, so
// addresses of its ranges that none has are refused.
func (d *Datapath) Prune(keep []Endpoint) error {
	known := map[string]bool{}
	for _, name := range append([]string{pairOut}, d.opts.Uplinks...) {
		known[name] = true
	}
	addrs := map[netip.Addr]bool{}
	ifindexes := map[uint32]bool{}
	for _, ep := range keep {
		known[ep.HostIf], known[secondHostIf(ep.HostIf)] = true, true
		addrs[ep.IPv4], addrs[ep.IPv6] = true, true
		for _, name := range []string{ep.HostIf, secondHostIf(ep.HostIf)} {
			if l, err := netlink.LinkByName(name); err == nil {
				ifindexes[uint32(l.Attrs().Index)] = true
			}
		}
	}
	links, err := pinnedLinks(d.opts.BPFDir)
	for _, l := range links {
		if l.hook != "pod_out" && !known[l.iface] {
			err = errors.Join(err, detach(l.path))
		}
	}
	err = errors.Join(err, d.pruneMaps(addrs, ifindexes), d.setOwnRanges())
	d.dropStaleMaps()
	return err
}

func (d *Datapath) pruneMaps(addrs map[netip.Addr]bool, ifindexes map[uint32]bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var addr bpfAddr
	var ifindex uint32
	var value bpfEndpoint
	var staleAddrs []bpfAddr
	var staleIfs []uint32
	for entries := d.maps.EpAddr.Iterate(); entries.Next(&addr, &value); {
		if !addrs[fromAddr(addr)] {
			staleAddrs = append(staleAddrs, addr)
		}
	}
	for entries := d.maps.EpIf.Iterate(); entries.Next(&ifindex, &value); {
		if !ifindexes[ifindex] {
			staleIfs = append(staleIfs, ifindex)
		}
	}
	var err error
	for _, a := range staleAddrs {
		err = errors.Join(err, deleteKey(d.maps.EpAddr, &a))
	}
	for _, i := range staleIfs {
		err = errors.Join(err, deleteKey(d.maps.EpIf, &i))
	}
	return errors.Join(err, d.changed())
}

func deleteKey(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from %s: %w", m, err)
	}
	return nil
}

// putEndpoint enters an endpoint into the maps under its addresses and all its host-side interfaces.
func (d *Datapath) putEndpoint(ep Endpoint, ifindexes []int) error {
	value := bpfEndpoint{
		Ifindex: uint32(ifindexes[0]), Slot: ep.Slot, Mtu: uint16(min(ep.MTU, 65535)),
		Mac: toMAC(ep.MAC), GatewayMac: toMAC(ep.GatewayMAC), Identity: ep.Identity,
	}
	if ep.IPv4.IsValid() {
		value.Flags |= bpfEndpointIp4
		value.Ip4 = be32(ep.IPv4)
	}
	if ep.IPv6.IsValid() {
		value.Flags |= bpfEndpointIp6
		value.Ip6 = toAddr(ep.IPv6)
	}
	if ep.Chained {
		value.Flags |= bpfEndpointChained
	}
	if d.mode.Active == ModeXDP || (d.mode.Active == ModeHybrid && !ep.Chained) {
		value.Flags |= bpfEndpointXdpOut
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, index := range ifindexes {
		if err := d.maps.EpIf.Put(uint32(index), &value); err != nil {
			return fmt.Errorf("enter interface %d: %w", index, err)
		}
	}
	for _, a := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if !a.IsValid() {
			continue
		}
		key := toAddr(a)
		if err := d.maps.EpAddr.Put(&key, &value); err != nil {
			return fmt.Errorf("enter address %s: %w", a, err)
		}
	}
	d.eps[ep.Slot] = ep
	if ep.Chained {
		if err := d.dropOwnRanges(); err != nil {
			return err
		}
	}
	return d.changed()
}

// forgetEndpoint removes an endpoint's map entries, but not entries that another endpoint
// has taken over since: an address may be in use again at once.
func (d *Datapath) forgetEndpoint(ep Endpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	var value bpfEndpoint
	for _, a := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if !a.IsValid() {
			continue
		}
		key := toAddr(a)
		if d.maps.EpAddr.Lookup(&key, &value) == nil && value.Slot == ep.Slot {
			err = errors.Join(err, deleteKey(d.maps.EpAddr, &key))
		}
	}
	var ifindex uint32
	var stale []uint32
	for entries := d.maps.EpIf.Iterate(); entries.Next(&ifindex, &value); {
		if value.Slot == ep.Slot {
			stale = append(stale, ifindex)
		}
	}
	for _, i := range stale {
		err = errors.Join(err, deleteKey(d.maps.EpIf, &i))
	}
	err = errors.Join(err, d.clearCounters(ep.Slot))
	delete(d.eps, ep.Slot)
	return errors.Join(err, d.changed())
}
