package pathprobe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Fits is the largest IP packet of at most mtu bytes that gets to a node and back, in one
// piece. It is mtu itself in the usual case, after two round trips; else it is searched for,
// which takes some seconds. ErrNoAnswer means that not even a small one came back.
func (p *Prober) Fits(ctx context.Context, node netip.Addr, mtu int) (int, error) {
	least := minIPv6
	if node.Is4() {
		least = minIPv4
	}
	least = min(least, mtu)
	// A small one first: only from an end that is there the silence on a large one says something.
	if err := p.answers(ctx, node, least); err != nil {
		return 0, err
	}
	if ok, err := p.passes(ctx, node, mtu); ok || err != nil {
		return mtu, err
	}
	return p.search(ctx, node, least, mtu)
}

// answers says whether the other end is there now: nil, or ErrNoAnswer.
func (p *Prober) answers(ctx context.Context, node netip.Addr, least int) error {
	ok, err := p.passes(ctx, node, least)
	if err == nil && !ok {
		err = fmt.Errorf("%w from %s at UDP port %d", ErrNoAnswer, node, p.opt.Port)
	}
	return err
}

// search closes in on the largest size between least, which passes, and mtu, which did not.
// An end that goes away meanwhile must not look like a narrow path, so a size fails only
// if a packet of the least size passes after it, and mtu itself is tried once more.
func (p *Prober) search(ctx context.Context, node netip.Addr, least, mtu int) (int, error) {
	passes, fails := least, mtu
	for passes+1 < fails {
		size := passes + (fails-passes)/2
		ok, err := p.passes(ctx, node, size)
		if err == nil && !ok {
			err = p.answers(ctx, node, least)
		}
		if err != nil {
			return 0, err
		}
		if ok {
			passes = size
		} else {
			fails = size
		}
	}
	ok, err := p.passes(ctx, node, mtu)
	if ok || err != nil {
		return mtu, err
	}
	if err := p.answers(ctx, node, least); err != nil {
		return 0, err
	}
	return passes, nil
}

// passes sends packets of a size until one comes back.
func (p *Prober) passes(ctx context.Context, node netip.Addr, size int) (bool, error) {
	conn := p.conns[node.Is4()]
	if conn == nil {
		return false, fmt.Errorf("probe the path to %s: this kernel has no IPv6", node)
	}
	headers := headersIPv6
	if node.Is4() {
		headers = headersIPv4
	}
	if size-headers < probeSize {
		return false, fmt.Errorf("probe the path to %s: %d bytes are too few", node, size)
	}
	to := netip.AddrPortFrom(node, uint16(p.opt.Port))
	for range p.opt.Tries {
		number := newNumber()
		answered := p.expect(number)
		_, err := conn.WriteToUDPAddrPort(probe(number, size-headers), to)
		if errors.Is(err, unix.EMSGSIZE) {
			p.forget(number)
			return false, nil // our own interface does not take it
		}
		// Other errors may be of an ICMP message to an earlier packet: wait and send again.
		ok := p.await(ctx, answered)
		p.forget(number)
		if ok {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return false, nil
}

func (p *Prober) expect(number uint64) <-chan struct{} {
	answered := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[number] = answered
	return answered
}

func (p *Prober) forget(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, number)
}

func (p *Prober) await(ctx context.Context, answered <-chan struct{}) bool {
	timer := time.NewTimer(p.opt.Wait)
	defer timer.Stop()
	select {
	case <-answered:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
