package datapath

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// hostBuffer is the receive buffer of a subscription: some ten thousand events.
const hostBuffer = 8 << 20

// hostEvents are subscriptions to what others may change under Weft.
type hostEvents struct {
	links     chan netlink.LinkUpdate
	routes    chan netlink.RouteUpdate
	neighbors chan netlink.NeighUpdate
	// end ends the subscriptions and takes what they still have, else their goroutines would wait
	// for a reader for ever.
	end func()
}

// errUnsubscribed says that the library gave a subscription up, mostly since its socket overflowed.
// The caller subscribes anew.
var errUnsubscribed = errors.New("the kernel's events were cut off")

func (d *Datapath) subscribeHost(ctx context.Context) (*hostEvents, error) {
	ctx, cancel := context.WithCancel(ctx)
	e := &hostEvents{links: make(chan netlink.LinkUpdate, 64),
		routes: make(chan netlink.RouteUpdate, 256), neighbors: make(chan netlink.NeighUpdate, 256)}
	var drains []func()
	e.end = func() {
		cancel()
		for _, drain := range drains {
			drain()
		}
	}
	failed := func(err error) {
		if ctx.Err() == nil {
			d.log.Warn("netlink subscription", "err", err)
		}
	}
	errLinks := netlink.LinkSubscribeWithOptions(e.links, ctx.Done(),
		netlink.LinkSubscribeOptions{ErrorCallback: failed, ReceiveBufferSize: hostBuffer,
			ReceiveBufferForceSize: true})
	if errLinks == nil {
		drains = append(drains, func() { drain(e.links) })
	}
	errRoutes := netlink.RouteSubscribeWithOptions(e.routes, ctx.Done(),
		netlink.RouteSubscribeOptions{ErrorCallback: failed, ReceiveBufferSize: hostBuffer,
			ReceiveBufferForceSize: true})
	if errRoutes == nil {
		drains = append(drains, func() { drain(e.routes) })
	}
	errNeighbors := netlink.NeighSubscribeWithOptions(e.neighbors, ctx.Done(),
		netlink.NeighSubscribeOptions{ErrorCallback: failed, ReceiveBufferSize: hostBuffer,
			ReceiveBufferForceSize: true})
	if errNeighbors == nil {
		drains = append(drains, func() { drain(e.neighbors) })
	}
	if err := errors.Join(errLinks, errRoutes, errNeighbors); err != nil {
		e.end()
		return nil, fmt.Errorf("follow the host's links, routes and neighbours: %w", err)
	}
	return e, nil
}

func drain[T any](events <-chan T) {
	for range events {
	}
}
