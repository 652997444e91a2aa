package datapath

import (
	"errors"
	"fmt"
	stdmaps "maps"
	"slices"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/nldump"
)

// Prune removes the links and map entries of endpoints that are not in keep: what is left of
// endpoints that went away while no agent ran. From here on every endpoint of this node is known,
// so addresses of its ranges that none has are refused.
//
// A pod's interface that is there without an endpoint keeps its hooks: without an entry in the maps
// they refuse all that comes from it. Problems names it.
func (d *Datapath) Prune(keep []Endpoint) error {
	known := map[string]bool{}
	for _, name := range append([]string{netdev.SegmentationOut, hook.AllInterfaces},
		d.opts.Uplinks...) {
		known[name] = true
	}
	addrs := map[bpf.AddrKey]bool{}
	ifindexes := map[uint32]bool{}
	slots := map[uint16]bool{}
	for _, ep := range keep {
		slots[ep.Slot] = true
		known[ep.HostIf], known[netdev.SecondHostIf(ep.HostIf)] = true, true
		for _, a := range ep.Addresses() {
			addrs[bpf.AddrKeyOf(ep.Network, a)] = true
		}
		for _, name := range []string{ep.HostIf, netdev.SecondHostIf(ep.HostIf)} {
			if l, err := netlink.LinkByName(name); err == nil {
				ifindexes[uint32(l.Attrs().Index)] = true
			}
		}
	}
	// Those that could not be entered before.
	err := errors.Join(d.EnterEndpoints(keep), d.pruneLinks(known))
	d.forgetOthers(slots)
	err = errors.Join(err, d.pruneMaps(addrs, ifindexes), d.pruneSlots(slots), d.setOwnRanges())
	if d.hold.isOn() {
		return err
	}
	return errors.Join(err, d.dropFormer())
}

// forgetOthers forgets endpoints that were entered and are gone.
func (d *Datapath) forgetOthers(slots map[uint16]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stdmaps.DeleteFunc(d.eps, func(slot uint16, _ Endpoint) bool { return !slots[slot] })
}

// pruneSlots empties the slots of endpoints that are gone: their policy sets are nobody's any more.
func (d *Datapath) pruneSlots(slots map[uint16]bool) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var value bpf.EpSlot
	for i := range uint32(MaxEndpoints) {
		if !slots[uint16(i)] && d.maps.EpSlot.Lookup(i, &value) == nil && value != (bpf.EpSlot{}) {
			err = errors.Join(err, d.maps.EpSlot.Put(i, &bpf.EpSlot{}))
		}
	}
	return err
}

// dropFormer takes away what this run has replaced: hooks of uplinks that are none any more, and
// maps of other layouts.
func (d *Datapath) dropFormer() error {
	links, err := hook.List(d.opts.BPFDir)
	for _, l := range links {
		if hook.OnlyAt(l.Hook, hook.Uplink) && !slices.Contains(d.opts.Uplinks, l.Iface) {
			err = errors.Join(err, hook.Detach(l.Path))
		}
	}
	bpf.DropStale(d.opts.BPFDir, d.opts.FlowEntries, d.opts.Encrypt != nil, d.log)
	return err
}

// pruneLinks removes the links of interfaces that are gone.
func (d *Datapath) pruneLinks(known map[string]bool) error {
	links, err := hook.List(d.opts.BPFDir)
	var strays []string
	for _, l := range links {
		if known[l.Iface] || hook.OnlyAt(l.Hook, hook.Uplink) {
			continue
		}
		gone, goneErr := hook.RemoveDead(l.Path)
		err = errors.Join(err, goneErr)
		if !gone && l.Hook == "from_pod" {
			err = errors.Join(err, d.refuseStray(l))
			strays = append(strays, l.Iface)
		}
	}
	d.host.set(func(h *hostState) { h.strays = slices.Compact(slices.Sorted(slices.Values(strays))) })
	return err
}

// refuseStray sees to it that an interface without an endpoint has the hook of now, or is down:
// that of before may have a map of its own in which there is one.
func (d *Datapath) refuseStray(l hook.Pinned) error {
	if !d.maps.Hooked || !d.maps.Created["weft_ep_if"] {
		return nil
	}
	pinned, err := link.LoadPinnedLink(l.Path, nil)
	if err != nil {
		return fmt.Errorf("open pinned link %s: %w", l.Path, err)
	}
	defer pinned.Close()
	if err := d.progs.Update(pinned,
		hook.Attachment{Name: l.Hook, Kind: l.Kind,
			Program: d.progs.Get(l.Hook, l.Kind)}); err != nil {
		d.log.Warn("an interface without an endpoint is set down: its hook cannot be replaced",
			"interface", l.Iface, "err", err)
		return netdev.SetDown(l.Iface)
	}
	return nil
}

// dropGone removes what interfaces that are gone have left: pins, entries, problems. It returns
// false while an endpoint is being attached, whose fresh pin might have the name of a dead one:
// then look again.
func (d *Datapath) dropGone() (done bool) {
	if !d.attaching.TryLock() {
		return false
	}
	defer d.attaching.Unlock()
	links, err := hook.List(d.opts.BPFDir)
	for _, l := range links {
		if hook.OnlyAt(l.Hook, hook.Uplink) || l.Iface == netdev.SegmentationOut ||
			l.Iface == hook.AllInterfaces || slices.Contains(d.opts.Uplinks, l.Iface) {
			continue
		}
		_, deadErr := hook.RemoveDead(l.Path)
		err = errors.Join(err, deadErr)
	}
	err = errors.Join(err, d.dropGoneEntries())
	if err != nil {
		d.log.Warn("remove what interfaces that are gone have left", "err", err)
	}
	left, err := hook.List(d.opts.BPFDir)
	if err == nil {
		d.host.set(func(h *hostState) {
			h.strays = slices.DeleteFunc(h.strays, func(name string) bool {
				return !slices.ContainsFunc(left,
					func(l hook.Pinned) bool { return l.Iface == name && l.Hook == "from_pod" })
			})
		})
	}
	return true
}

// dropGoneEntries removes the entries of interfaces that are gone. Callers hold d.attaching.
func (d *Datapath) dropGoneEntries() error {
	list, err := nldump.Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	there := map[uint32]bool{}
	for _, l := range list {
		there[uint32(l.Attrs().Index)] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var ifindex uint32
	var value bpf.Endpoint
	var gone []uint32
	for entries := d.maps.EpIf.Iterate(); entries.Next(&ifindex, &value); {
		if !there[ifindex] {
			gone = append(gone, ifindex)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	for _, i := range gone {
		err = errors.Join(err, bpf.DeleteKey(d.maps.EpIf, &i))
	}
	return errors.Join(err, d.changed())
}
