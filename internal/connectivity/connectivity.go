// Package connectivity tests who reaches whom: every ordered pair of workloads, both
// families, ICMP, UDP and TCP, small packets, packets of exactly the path's MTU, and
// packets one byte larger, which must be refused and not vanish.
package connectivity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// The kinds of targets.
const (
	KindPod  = "pod"
	KindNode = "node"
)

// The protocols and families.
var (
	Protocols = []string{"icmp", "udp", "tcp"}
	Families  = []string{"v4", "v6"}
)

// Target is something that talks and answers.
type Target struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Node is where the target is.
	Node string `json:"node"`
	// NetNS is the path of its network namespace.
	NetNS string `json:"netns"`
	// IPv4 and IPv6 are its addresses; an invalid one is not tested.
	IPv4 netip.Addr `json:"ipv4,omitzero"`
	IPv6 netip.Addr `json:"ipv6,omitzero"`
	// MTU is that of its interface, WireMTU the smallest of its node's uplinks; 0 is unknown.
	MTU     int `json:"mtu"`
	WireMTU int `json:"wireMTU"`
}

func (t Target) addr(family string) netip.Addr {
	if family == "v4" {
		return t.IPv4
	}
	return t.IPv6
}

// Options bound a test.
type Options struct {
	// Protocols and Families are what is tested; empty means all.
	Protocols []string
	Families  []string
	// Timeout is for one attempt, Tries how many a packet has. Default 1 s and 3.
	Timeout time.Duration
	Tries   int
	// Parallel is how many pairs are tested at once. Default 8.
	Parallel int
	// From and To select targets by name; empty means all.
	From, To []string
}

// The sizes of a Result that are not numbers of bytes from the user's view.
const transferSize = 100_000

// Result is one test of one pair.
type Result struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	// Test is small, mtu (exactly the path's), over (one byte more, to be refused) or transfer.
	Test string `json:"test"`
	// Size is the IP packet's in bytes, or the bytes sent and got back over TCP.
	Size int  `json:"size"`
	OK   bool `json:"ok"`
	// RTT is in microseconds: of the packet, or of the TCP handshake.
	RTT    float64 `json:"rttMicroseconds,omitempty"`
	Detail string  `json:"detail,omitempty"`
}

// Report is the outcome of a test.
type Report struct {
	OK      bool     `json:"ok"`
	Targets []Target `json:"targets"`
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Seconds float64  `json:"seconds"`
	Results []Result `json:"results"`
}

// pair is one direction between two targets.
type pair struct{ from, to Target }

// Test runs every test between the targets. The error is for a test that could not be
// made; who did not reach whom is in the report.
func Test(ctx context.Context, targets []Target, opt Options) (*Report, error) {
	if err := opt.check(); err != nil {
		return nil, err
	}
	pairs := choosePairs(targets, opt)
	if len(pairs) == 0 {
		return nil, errors.New("there is no pair to test: two pods, or a pod and its node, are needed")
	}
	servers, err := startServers(pairs)
	if err != nil {
		return nil, err
	}
	defer servers.close()
	began := time.Now()
	report := &Report{Targets: targets}
	var lock sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, opt.Parallel)
	for _, p := range pairs {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			results := testPair(ctx, p, servers, opt)
			lock.Lock()
			defer lock.Unlock()
			report.Results = append(report.Results, results...)
		})
	}
	group.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted: %w", ctx.Err())
	}
	report.finish(began)
	return report, nil
}

func (o *Options) check() error {
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	o.Tries = cmp.Or(o.Tries, 3)
	o.Parallel = cmp.Or(o.Parallel, 8)
	if o.Timeout < 0 || o.Tries < 0 || o.Parallel < 0 {
		return errors.New("timeout, tries and parallel must be more than 0")
	}
	for _, list := range []struct {
		field      string
		got, known []string
	}{{"protocol", o.Protocols, Protocols}, {"family", o.Families, Families}} {
		for _, name := range list.got {
			if !slices.Contains(list.known, name) {
				return fmt.Errorf("%s %q is not tested: use %v", list.field, name, list.known)
			}
		}
	}
	if len(o.Protocols) == 0 {
		o.Protocols = Protocols
	}
	if len(o.Families) == 0 {
		o.Families = Families
	}
	return nil
}

// choosePairs are all ordered pairs in which at least one end is a pod.
func choosePairs(targets []Target, opt Options) []pair {
	var pairs []pair
	for _, from := range targets {
		if len(opt.From) > 0 && !slices.Contains(opt.From, from.Name) {
			continue
		}
		for _, to := range targets {
			if from.Name == to.Name || (from.Kind == KindNode && to.Kind == KindNode) ||
				(len(opt.To) > 0 && !slices.Contains(opt.To, to.Name)) {
				continue
			}
			pairs = append(pairs, pair{from, to})
		}
	}
	return pairs
}

// pathMTU is the largest IP packet that the pair must be able to exchange, 0 when unknown.
func (p pair) pathMTU() int {
	sizes := []int{p.from.MTU, p.to.MTU}
	if p.from.Node != p.to.Node {
		sizes = append(sizes, p.from.WireMTU, p.to.WireMTU)
	}
	mtu := 0
	for _, size := range sizes {
		if size > 0 && (mtu == 0 || size < mtu) {
			mtu = size
		}
	}
	return mtu
}

func testPair(ctx context.Context, p pair, servers *servers, opt Options) []Result {
	var results []Result
	for _, family := range opt.Families {
		if !p.from.addr(family).IsValid() || !p.to.addr(family).IsValid() {
			continue
		}
		for _, protocol := range opt.Protocols {
			if ctx.Err() != nil {
				return results
			}
			probe := probe{pair: p, family: family, protocol: protocol, opt: opt,
				server: servers.at(p.to.Name, family)}
			results = append(results, probe.run(ctx)...)
		}
	}
	return results
}

func (r *Report) finish(began time.Time) {
	r.Seconds = time.Since(began).Seconds()
	slices.SortStableFunc(r.Results, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	for _, result := range r.Results {
		if result.OK {
			r.Passed++
		} else {
			r.Failed++
		}
	}
	r.OK = r.Failed == 0 && r.Passed > 0
}
