package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
)

// setOwnAddresses puts this node's own addresses into the routes, as node 0: nobody else may send from them.
func (d *Datapath) setOwnAddresses() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	have, err := d.readRoutes()
	if err != nil {
		return err
	}
	return d.syncOwnAddresses(have)
}

// syncOwnAddresses does so, for the addresses that the Node object lists and for those that the node has besides
// (another card's, a bridge's, a virtual one's), which others do not know as its. An address of another node's
// is left to that. have is what the routes map holds, and is kept so. Callers hold d.mu.
func (d *Datapath) syncOwnAddresses(have map[bpf.RouteKey]bpf.Route) error {
	want := map[bpf.RouteKey]bpf.Route{}
	for _, a := range d.unlistedAddresses() {
		want[bpf.RouteKeyOf(netip.PrefixFrom(a, a.BitLen()))] = bpf.Route{Flags: bpf.RouteHost | bpf.RouteUnlisted}
	}
	for _, a := range d.opts.HostAddrs {
		want[bpf.RouteKeyOf(netip.PrefixFrom(a, a.BitLen()))] = bpf.Route{Flags: bpf.RouteHost}
	}
	var stale []bpf.RouteKey
	for key, value := range have {
		_, wanted := want[key]
		switch {
		case value == want[key] || wanted && !isOwnAddress(value):
			delete(want, key)
		case isOwnAddress(value) && !wanted:
			stale = append(stale, key)
		}
	}
	var err error
	for key, route := range want {
		if putErr := d.maps.Routes.Put(&key, &route); putErr != nil {
			err = errors.Join(err, fmt.Errorf("write route of an own address: %w", putErr))
			continue
		}
		have[key] = route
	}
	for _, k := range stale {
		err = errors.Join(err, bpf.DeleteKey(d.maps.Routes, &k))
		delete(have, k)
	}
	if len(want) == 0 && len(stale) == 0 {
		return err
	}
	return errors.Join(err, d.changed())
}

func isOwnAddress(r bpf.Route) bool { return isOwn(r) && r.Flags&bpf.RouteHost != 0 }

// unlistedAddresses are those of this node's interfaces that its Node object does not list. Those of a loopback or of
// a link are nobody's on a wire.
func (d *Datapath) unlistedAddresses() []netip.Addr {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		d.log.Warn("list this node's addresses", "err", err)
		return nil
	}
	var out []netip.Addr
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); ok && ip.IsGlobalUnicast() && !slices.Contains(d.opts.HostAddrs, ip) {
			out = append(out, ip)
		}
	}
	return out
}
