package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/pathprobe"
	"weft.dev/weft/internal/store"
)

// How often paths are probed: one that was good, one whose other end did not answer (soon at first,
// as agents that start together miss each other), one that was narrow.
const (
	probeAgain   = 10 * time.Minute
	probeSoon    = time.Second
	probeRetry   = 15 * time.Second
	probeNarrow  = time.Minute
	probesAtOnce = 8
	probeLook    = time.Second
)

// Prober is what the agent needs of *pathprobe.Prober.
type Prober interface {
	Serve(ctx context.Context) error
	Fits(ctx context.Context, node netip.Addr, mtu int) (int, error)
	Close() error
}

// paths remembers what the probes found, by node.
type paths struct {
	mu     sync.Mutex
	byNode map[string]pathState
}

type pathState struct {
	admin.PathCheck
	addr  netip.Addr
	next  time.Time
	pause time.Duration // before the next attempt, while there is no answer
}

// get is what is known of the path to a node, nil when nobody asks for it.
func (p *paths) get(node string) *admin.PathCheck {
	p.mu.Lock()
	defer p.mu.Unlock()
	state, ok := p.byNode[node]
	if !ok {
		return nil
	}
	check := state.PathCheck
	check.Probing = check.Checked.IsZero()
	return &check
}

// due are the nodes to probe now, with the addresses that packets to them have outside.
func (p *paths) due(want map[string]netip.Addr, now time.Time) map[string]netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := map[string]netip.Addr{}
	next := make(map[string]pathState, len(want))
	for node, addr := range want {
		state := p.byNode[node]
		if state.addr != addr {
			state = pathState{addr: addr}
		}
		if !now.Before(state.next) {
			due[node] = addr
		}
		next[node] = state
	}
	p.byNode = next
	return due
}

// begin makes a node not due again until its probe has ended.
func (p *paths) begin(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := p.byNode[node]
	state.next = time.Now().Add(time.Hour)
	p.byNode[node] = state
}

// pauseAfter is how long to wait after one more probe without an answer.
func (p *paths) pauseAfter(node string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(2*p.byNode[node].pause, probeSoon), probeRetry)
}

func (p *paths) set(node string, state pathState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byNode[node].addr == state.addr {
		p.byNode[node] = state
	}
}

// worst names the narrowest path whose packets of that size do not fit, "" if all do.
func (p *paths) worst(fits func(path int, node netip.Addr) bool) (string, pathState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var name string
	var found pathState
	for node, state := range p.byNode {
		if state.Fits == 0 || fits(state.Fits, state.addr) {
			continue
		}
		if name == "" || state.Fits < found.Fits || state.Fits == found.Fits && node < name {
			name, found = node, state
		}
	}
	return name, found
}

// watchPaths holds ESP's port, answers other nodes' probes, and probes the way to each.
func (a *Agent) watchPaths(ctx context.Context, n *node) {
	a.keep(ctx, "path probes", func(ctx context.Context) error {
		prober, err := a.seams.openProber(pathprobe.Options{Port: a.cfg.Encryption.Port,
			Known: a.isNode, Log: a.log})
		if err != nil {
			return err
		}
		defer prober.Close()
		ctx, cancel := context.WithCancel(ctx)
		var background sync.WaitGroup
		defer background.Wait()
		defer cancel()
		background.Go(func() { a.probePaths(ctx, n, prober) })
		return prober.Serve(ctx)
	})
}

// isNode says whether an address is another node's.
func (a *Agent) isNode(addr netip.Addr) bool {
	known, ok := a.index.Load().who(addr)
	return ok && known.Pod == "" && known.Node != ""
}

// probePaths probes what is due, over and over.
func (a *Agent) probePaths(ctx context.Context, n *node, prober Prober) {
	room := make(chan struct{}, probesAtOnce)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for name, addr := range a.paths.due(outerAddrs(a.index.Load().snapshot, a.cfg.Node,
			n.object), time.Now()) {
			a.paths.begin(name)
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				return
			}
			running.Go(func() {
				a.probe(ctx, n, prober, name, addr)
				<-room
			})
		}
		a.reportPaths(n)
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeLook):
		}
	}
}

func (a *Agent) probe(ctx context.Context, n *node, prober Prober, name string, addr netip.Addr) {
	fits, err := prober.Fits(ctx, addr, n.links.MTU)
	if ctx.Err() != nil {
		// The next prober begins anew.
		a.paths.set(name, pathState{addr: addr})
		return
	}
	state := pathState{addr: addr, next: time.Now().Add(probeAgain),
		PathCheck: admin.PathCheck{Configured: n.links.MTU, Fits: fits, Checked: time.Now()}}
	switch {
	case err != nil:
		state.pause = a.paths.pauseAfter(name)
		state.next, state.Problem = time.Now().Add(state.pause), err.Error()
		if errors.Is(err, pathprobe.ErrNoAnswer) {
			state.Problem += ": its agent does not run, or something between drops the port"
		}
	case fits < n.links.MTU:
		state.next = time.Now().Add(probeNarrow)
		state.Problem = fmt.Sprintf("packets of more than %d bytes do not pass, and the uplinks' MTU is %d", fits, n.links.MTU)
		a.log.Warn("narrow path", "node", name, "address", addr, "fits", fits, "uplinks",
			n.links.MTU)
	}
	a.paths.set(name, state)
}

// reportPaths names a path that pods' packets do not fit, and what to do.
func (a *Agent) reportPaths(n *node) {
	name, state := a.paths.worst(func(path int, addr netip.Addr) bool { return inet.SealedMTU(path, addr.Is6()) >= n.mtu })
	if name == "" {
		a.problem("paths", nil)
		return
	}
	a.problem("paths",
		fmt.Errorf("the path to node %s carries packets of %d bytes, pods' packets of %d need %d when sealed: set mtu: %d on all nodes and make the pods anew, or widen the path",
			name, state.Fits, n.mtu, sealedSize(n.mtu, state.addr.Is6()),
			inet.SealedMTU(state.Fits, state.addr.Is6())))
}

// sealedSize is how large a packet of that size is when it is sealed.
func sealedSize(inner int, outerIPv6 bool) int {
	size := inner
	for inet.SealedMTU(size, outerIPv6) < inner {
		size++
	}
	return size
}

// outerAddrs are the other nodes' addresses that sealed packets go to: IPv4 if both ends
// have it, else IPv6.
func outerAddrs(snapshot *store.Snapshot, own string, object *v1alpha1.Node) map[string]netip.Addr {
	out := map[string]netip.Addr{}
	for _, peer := range peers(snapshot.Nodes, own) {
		if addr, ok := outerAddr(peer, object.Spec.Addresses); ok {
			out[peer.Name] = addr
		}
	}
	return out
}

func outerAddr(peer datapath.Node, own []netip.Addr) (netip.Addr, bool) {
	for _, family := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		if at := slices.IndexFunc(peer.Addresses, family); at >= 0 &&
			slices.ContainsFunc(own, family) {
			return peer.Addresses[at], true
		}
	}
	return netip.Addr{}, false
}

// PodMTU is what pods may have, given the uplinks and the nodes that are known.
func PodMTU(cfg *config.Config, uplinks int, object *v1alpha1.Node,
	snapshot *store.Snapshot) (int, error) {
	var addrs [][]netip.Addr
	for _, peer := range peers(snapshot.Nodes, cfg.Node) {
		addrs = append(addrs, peer.Addresses)
	}
	mtu, err := cfg.PodMTU(uplinks, config.OuterIPv6(object.Spec.Addresses, addrs))
	if err != nil {
		return 0, err
	}
	hasIPv6 := slices.ContainsFunc(podRanges(cfg, object),
		func(p netip.Prefix) bool { return p.Addr().Is6() })
	if cfg.Encryption.On() && hasIPv6 && mtu < minIPv6MTU {
		return 0, fmt.Errorf("mtu: the uplinks' MTU %d leaves pods %d when packets are sealed, and IPv6 needs %d: give the uplinks %d, or take the IPv6 range away",
			uplinks, mtu, minIPv6MTU, sealedSize(minIPv6MTU, true))
	}
	return mtu, nil
}

// minIPv6MTU is the least that IPv6 works with.
const minIPv6MTU = 1280

// podRanges are where pods' addresses come from.
func podRanges(cfg *config.Config, object *v1alpha1.Node) []netip.Prefix {
	if len(cfg.IPAM.Ranges) > 0 {
		return cfg.IPAM.Ranges
	}
	return object.Spec.PodCIDRs
}
