package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/netns"
)

// AttachEndpoint hooks an endpoint's interface and makes it reachable. It can be called again for
// the same endpoint, for instance after a restart: programs are then replaced under traffic. When
// the mode or the endpoint's datapath changes, the order keeps every packet whole: what the new one
// needs is there before its hooks, what the old one needed goes after its hooks.
func (d *Datapath) AttachEndpoint(ep Endpoint) error {
	d.attaching.RLock()
	defer d.attaching.RUnlock()
	defer d.expedite.begin()()
	if err := errors.Join(ep.check(), d.checkHold(ep)); err != nil {
		return err
	}
	if err := d.guardFor(ep); err != nil {
		return err
	}
	host, err := netlink.LinkByName(ep.HostIf)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", ep.HostIf, err)
	}
	if err := d.checkChained(ep, host); err != nil {
		return err
	}
	if err := netns.Do(ep.NetNS, func() error { return nil }); err != nil {
		return errors.Join(err, d.attachHostSide(ep, host))
	}
	if err := d.setOffloads(ep, netdev.KeepOld); err != nil {
		return err
	}
	ifindexes := []int{host.Attrs().Index}
	second := d.hasXDPDatapath(ep)
	if second {
		ifindex, err := netdev.EnsureSecond(ep.HostIf, ep.NetNS, ep.GatewayMAC, host.Attrs().MTU)
		if err != nil {
			return err
		}
		ifindexes = append(ifindexes, ifindex)
	}
	// Maps before hooks: a hook refuses what comes from an interface that the maps do not know.
	if err := d.putEndpoint(ep, ifindexes); err != nil {
		return err
	}
	if second {
		if err := d.openSecondInterface(ep, ifindexes[1]); err != nil {
			return err
		}
	}
	if err := d.attachHooks(ep, ifindexes[0]); err != nil {
		return err
	}
	if !second {
		if err := d.removeSecondInterface(ep); err != nil {
			return err
		}
	}
	return d.setOffloads(ep, netdev.RestoreOld)
}

// attachHostSide is AttachEndpoint of an endpoint whose namespace cannot be entered: what is hooked
// stays so, with the programs and entries of now. Nothing is made that would need the pod's side.
func (d *Datapath) attachHostSide(ep Endpoint, host netlink.Link) error {
	ifindexes := []int{host.Attrs().Index}
	second, err := netlink.LinkByName(netdev.SecondHostIf(ep.HostIf))
	if err == nil {
		ifindexes = append(ifindexes, second.Attrs().Index)
	}
	if err := d.putEndpoint(ep, ifindexes); err != nil {
		return err
	}
	if second != nil {
		fromPod, err := d.progs.Second()
		if err != nil {
			return err
		}
		if err := d.links().EnsureOne(fromPod, second.Attrs().Name,
			second.Attrs().Index); err != nil {
			return err
		}
	}
	return d.attachHooks(ep, host.Attrs().Index)
}

// attachHooks makes the mode's hooks, and no others, the ones of the interface's host side.
func (d *Datapath) attachHooks(ep Endpoint, ifindex int) error {
	// pod_out's pin is named after this interface, too, but is removeSecondInterface's business.
	return d.links().Ensure(ep.HostIf, ifindex, d.hooksFor(ep),
		d.progs.At(hook.PodOwn, hook.ByXDP)...)
}

// DetachEndpoint takes an endpoint's hooks and map entries away. It is not an error if some, or the
// interface itself, are gone already. An interface that is still there is set down first. One that
// another plugin made keeps its state and its hooks, which refuse what comes from an interface that
// the maps do not know: it is for that plugin to remove it.
func (d *Datapath) DetachEndpoint(ep Endpoint) error {
	defer d.expedite.begin()()
	err := d.forgetEndpoint(ep)
	if ep.Chained {
		return errors.Join(err, d.links().DropDead(ep.HostIf))
	}
	if downErr := netdev.SetDown(ep.HostIf); downErr != nil {
		return errors.Join(err, downErr)
	}
	if stepErr := d.step("down"); stepErr != nil {
		return stepErr
	}
	err = errors.Join(err, d.removeSecondInterface(ep), d.links().Drop(ep.HostIf))
	if restoreErr := d.undo.ApplyOffloads(ep.HostIf, ep.NetNS, ep.PodIf, nil,
		netdev.RestoreOld); restoreErr != nil {
		// The pod's namespace, or its interface, is mostly gone by now: nothing left to put back.
		d.log.Debug("put back offloads", "interface", ep.HostIf, "err", restoreErr)
	}
	return errors.Join(err, d.undo.ForgetOffloads(ep.HostIf))
}

func (d *Datapath) pruneMaps(addrs map[bpf.AddrKey]bool, ifindexes map[uint32]bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var addr bpf.AddrKey
	var ifindex uint32
	var value bpf.Endpoint
	var staleAddrs []bpf.AddrKey
	var staleIfs []uint32
	for entries := d.maps.EpAddr.Iterate(); entries.Next(&addr, &value); {
		if !addrs[addr] {
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
		err = errors.Join(err, bpf.DeleteKey(d.maps.EpAddr, &a))
	}
	for _, i := range staleIfs {
		err = errors.Join(err, bpf.DeleteKey(d.maps.EpIf, &i))
	}
	return errors.Join(err, d.changed())
}

// putEndpoint enters an endpoint into the maps under its addresses and all its host-side
// interfaces.
func (d *Datapath) putEndpoint(ep Endpoint, ifindexes []int) error {
	value := bpf.Endpoint{
		Ifindex: uint32(ifindexes[0]), Slot: ep.Slot, Mtu: uint16(min(ep.MTU, 65535)),
		Mac: bpf.ToMAC(ep.MAC), GatewayMac: bpf.ToMAC(ep.GatewayMAC), Identity: ep.Identity,
		Network: ep.Network,
	}
	if ep.Chained {
		value.Flags |= bpf.EndpointChained
	}
	if d.mode.Active == ModeXDP || d.hasXDPDatapath(ep) {
		value.Flags |= bpf.EndpointXdpOut
	}
	gateway, err := gatewayIndex(ep, ifindexes[0])
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	value.Born = d.bornOf(ep, value.Ifindex)
	// First its policy: there is no moment in which it can be reached without.
	if err := d.police(ep); err != nil {
		return err
	}
	slot := bpf.EpSlot{Identity: ep.Identity, Bridge: gateway,
		Sets: [2]uint32{ep.EgressSet, ep.IngressSet}}
	if err := d.maps.EpSlot.Put(uint32(ep.Slot), &slot); err != nil {
		return fmt.Errorf("enter slot %d: %w", ep.Slot, err)
	}
	if err := d.step("slot entered"); err != nil {
		return err
	}
	for _, index := range ifindexes {
		if err := d.maps.EpIf.Put(uint32(index), &value); err != nil {
			return fmt.Errorf("enter interface %d: %w", index, err)
		}
	}
	for _, a := range ep.Addresses() {
		key := bpf.AddrKeyOf(ep.Network, a)
		if err := d.maps.EpAddr.Put(&key, &value); err != nil {
			return fmt.Errorf("enter address %s: %w", a, err)
		}
	}
	if err := d.dropAddresses(ep.Slot, ep); err != nil {
		return err
	}
	d.eps[ep.Slot] = ep
	if ep.Network != 0 {
		d.config.Flags |= bpf.ConfigNetworks
	}
	// Shares only shrink here: until Prune, more endpoints may be there than have been attached
	// again.
	if was := d.config.FlowShare; d.setShares() > was {
		d.config.FlowShare = was
	}
	if ep.Chained {
		if err := d.enterOwnRanges(); err != nil {
			return err
		}
	}
	return d.changed()
}

// bornOf is the number that an endpoint has had since it was attached first, or a new one. Flows
// hold the numbers of their ends: those of an endpoint that is gone mean nothing to the next one at
// its address.
func (d *Datapath) bornOf(ep Endpoint, ifindex uint32) uint32 {
	var was bpf.Endpoint
	for _, a := range ep.Addresses() {
		key := bpf.AddrKeyOf(ep.Network, a)
		if d.maps.EpAddr.Lookup(&key, &was) == nil && was.Slot == ep.Slot &&
			was.Ifindex == ifindex && was.Born != 0 {
			return was.Born
		}
	}
	return 1 + rand.Uint32N(1<<32-1)
}

// dropAddresses removes those entries of the endpoint last known in a slot that it has no more.
// Callers hold d.mu.
func (d *Datapath) dropAddresses(slot uint16, now Endpoint) error {
	was, known := d.eps[slot]
	if !known {
		return nil
	}
	kept := now.Addresses()
	was.IPv4, was.IPv6, was.More = netip.Addr{}, netip.Addr{}, slices.DeleteFunc(was.Addresses(),
		func(a netip.Addr) bool {
			return was.Network == now.Network && slices.Contains(kept, a)
		})
	return d.dropAddressesOf(was)
}

// dropAddressesOf removes the entries of an endpoint's addresses, but not those that another
// endpoint has taken over since.
func (d *Datapath) dropAddressesOf(ep Endpoint) (err error) {
	var value bpf.Endpoint
	for _, a := range ep.Addresses() {
		key := bpf.AddrKeyOf(ep.Network, a)
		if d.maps.EpAddr.Lookup(&key, &value) == nil && value.Slot == ep.Slot {
			err = errors.Join(err, bpf.DeleteKey(d.maps.EpAddr, &key))
		}
	}
	return err
}

// forgetEndpoint removes an endpoint's map entries, but not entries that another endpoint
// has taken over since: an address may be in use again at once.
func (d *Datapath) forgetEndpoint(ep Endpoint) error {
	err := d.removeEndpoint(ep)
	if ep.Chained {
		err = errors.Join(err, d.closeOwnRanges())
	}
	d.table.SweepSoon()
	return err
}

func (d *Datapath) removeEndpoint(ep Endpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := errors.Join(d.dropAddressesOf(ep), d.dropAddresses(ep.Slot, Endpoint{}))
	var value bpf.Endpoint
	var ifindex uint32
	var stale []uint32
	for entries := d.maps.EpIf.Iterate(); entries.Next(&ifindex, &value); {
		if value.Slot == ep.Slot {
			stale = append(stale, ifindex)
		}
	}
	for _, i := range stale {
		err = errors.Join(err, bpf.DeleteKey(d.maps.EpIf, &i))
	}
	// Last its policy, and only if it cannot be reached any more.
	err = errors.Join(err, d.step("unreachable"))
	if err == nil {
		err = d.maps.EpSlot.Put(uint32(ep.Slot), &bpf.EpSlot{})
	}
	err = errors.Join(err, d.clearCounters(ep.Slot))
	delete(d.eps, ep.Slot)
	d.unpolice()
	if ep.Chained {
		err = errors.Join(err, d.enterOwnRanges())
	}
	return errors.Join(err, d.changed())
}
