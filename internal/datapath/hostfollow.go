package datapath

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/nexthop"
	"weft.dev/weft/internal/netdev"
)

// How often the host is looked at without an event, and how long events are collected: who
// reconfigures an interface removes many routes at once.
const (
	hostLook   = 30 * time.Second
	hostSettle = 50 * time.Millisecond
)

// followHost keeps the map of next hops in line with the kernel's neighbours, routes and links, and
// puts back what others remove: hooks of an uplink that was made anew, at once; routes and
// neighbours, once the burst is over. The slow look finds what no event told.
//
// Nothing here loops: what it makes sends events of new things only, and those of deletions, also
// of the datapath's own, lead to a look that changes nothing if all is there.
func (d *Datapath) followHost(ctx context.Context) error {
	for {
		events, err := d.subscribeHost(ctx)
		if err != nil {
			return err
		}
		err = d.followEvents(ctx, events)
		events.end()
		if !errors.Is(err, errUnsubscribed) {
			return err
		}
		// What the overflow swallowed is found by the first look of the next round.
		d.log.Warn("events of the host were lost, looking at everything", "err", err)
		d.host.tell(HostChange{All: true})
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(hostSettle):
		}
	}
}

// hostLost is what the events of a burst told.
type hostLost struct {
	routes  map[string]bool
	peers   bool // the paths to peers may have changed
	restore bool // something of Weft's is gone
	links   bool // an interface is gone
}

// lookAtHost puts everything in order.
func (d *Datapath) lookAtHost(lost *hostLost) {
	d.followUplinks()
	lost.restore, lost.links = true, true
	d.settleHost(lost)
}

// settleHost acts on a burst of events that is over.
func (d *Datapath) settleHost(lost *hostLost) {
	if lost.restore {
		d.restoreRoutes(lost.routes)
	} else if lost.peers {
		if err := d.hops.Refresh(); err != nil {
			d.log.Warn("peers", "err", err)
		}
	}
	*lost = hostLost{routes: map[string]bool{}, links: lost.links && !d.dropGone()}
}

// followEvents acts on events until ctx or the subscription ends.
func (d *Datapath) followEvents(ctx context.Context, events *hostEvents) error {
	lost := hostLost{routes: map[string]bool{}}
	d.lookAtHost(&lost) // what happened before the subscription
	slow := time.NewTicker(hostLook)
	defer slow.Stop()
	settle := time.NewTimer(time.Hour)
	defer settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case l, open := <-events.links:
			if !open {
				return unsubscribed(ctx)
			}
			uplink := d.linkChanged(l)
			lost.links = lost.links || l.Header.Type == unix.RTM_DELLINK
			lost.peers = lost.peers || uplink
			if uplink || lost.links {
				settle.Reset(hostSettle)
			}
		case r, open := <-events.routes:
			if !open {
				return unsubscribed(ctx)
			}
			if d.lostRoute(r) {
				lost.routes[nexthop.RouteName(r.Route)], lost.restore = true, true
			}
			lost.peers = lost.peers || r.Protocol != RouteProtocol
			if lost.restore || lost.peers {
				settle.Reset(hostSettle)
			}
		case n, open := <-events.neighbors:
			if !open {
				return unsubscribed(ctx)
			}
			d.hops.NeighborChanged(n)
			if d.lostNeighbor(n) {
				lost.restore = true
				settle.Reset(hostSettle)
			}
		case <-settle.C:
			if d.settleHost(&lost); lost.links {
				settle.Reset(hostSettle)
			}
		case <-slow.C:
			d.lookAtHost(&lost)
		}
	}
}

// unsubscribed is the error for a subscription that has ended, none if it was ours to end.
func unsubscribed(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	return errUnsubscribed
}

// linkChanged acts on an event of an uplink or of a pod's interface, and tells whether it may have
// moved peers.
func (d *Datapath) linkChanged(l netlink.LinkUpdate) (uplink bool) {
	name := l.Link.Attrs().Name
	switch {
	case slices.Contains(d.opts.Uplinks, name):
		d.followUplinks()
		return true
	case l.Header.Type == unix.RTM_DELLINK, l.Link.Attrs().Flags&net.FlagUp == 0:
		if strings.HasPrefix(name, netdev.HostPrefix) ||
			strings.HasPrefix(name, netdev.SecondPrefix) || d.isEndpoint(name) {
			d.host.tell(HostChange{Interfaces: []string{name}})
		}
	}
	return false
}

func (d *Datapath) isEndpoint(hostIf string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ep := range d.eps {
		if ep.HostIf == hostIf {
			return true
		}
	}
	return false
}

// lostRoute tells whether a route to peers' pods or a last-resort route was deleted. One to an
// endpoint is its owner's, who is told unless it went with its interface.
func (d *Datapath) lostRoute(r netlink.RouteUpdate) bool {
	if r.Type != unix.RTM_DELROUTE || r.Protocol != RouteProtocol {
		return false
	}
	if r.Gw != nil || r.Route.Type == unix.RTN_UNREACHABLE {
		return true
	}
	d.tellOf(r.LinkIndex)
	return false
}

// lostNeighbor tells whether the entry of a peer's next hop was deleted; a pod's is its owner's.
func (d *Datapath) lostNeighbor(n netlink.NeighUpdate) bool {
	addr, ok := netip.AddrFromSlice(n.IP)
	if n.Type != unix.RTM_DELNEIGH || !ok {
		return false
	}
	if d.hops.IsNextHop(addr.Unmap()) {
		return true
	}
	if n.State&unix.NUD_PERMANENT != 0 {
		d.tellOf(n.LinkIndex)
	}
	return false
}

// tellOf has the owner of an endpoint look at it, unless its interface is gone.
func (d *Datapath) tellOf(ifindex int) {
	if l, err := netlink.LinkByIndex(ifindex); err == nil {
		d.host.tell(HostChange{Interfaces: []string{l.Attrs().Name}})
	}
}

// restoreRoutes puts back routes and neighbours that are missing, and notes the routes.
func (d *Datapath) restoreRoutes(lost map[string]bool) {
	back, err := d.hops.Restore(lost)
	if err != nil {
		d.log.Warn("put back routes", "err", err)
	}
	if len(back) == 0 {
		return
	}
	d.log.Warn("routes of Weft's were gone, put them back", "routes", back)
	d.host.note("%d of Weft's routes were gone (removed by somebody else?), put them back: %s",
		len(back), strings.Join(back[:min(len(back), 4)], ", "))
}
