package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/test/labtest"
)

// sealedNodes is threeNodes with encryption, which is the default. Keys drain soon, so that many
// rotations fit. The third has a pod range, which makes it a node to the agents: one that has no
// keys.
const sealedNodes = `
name: set-later
agent:
  log: {level: debug}
  keys: {drain: 300ms}
nodes:
  - {name: a, addresses: [192.0.2.1/24, "2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: [192.0.2.2/24, "2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
  - {name: out, addresses: [192.0.2.9/24, "2001:db8::9/64"], podCIDRs: [10.77.9.0/24, "fd77:9::/64"], agent: false}
wires:
  - {name: w0, nodes: [a, b, out], offload: false} # as on a real network: checksums are whole
pods:
  - {name: client, node: a, namespace: shop, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: db, node: a, namespace: shop, addresses: [10.77.1.100, "fd77:1::100"], labels: {open: "yes"}}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
  - {name: web, node: b, namespace: open, addresses: [10.77.2.80, "fd77:2::80"]}
`

// sealed is the lab that tests of encryption use one after another.
var sealed sealedLab

type sealedLab struct {
	once  sync.Once
	lab   *lab.Lab
	echos []*traffic.EchoServer
	err   error
}

// useSealed gives the shared lab with encryption, whole.
func useSealed(t *testing.T) *lab.Lab {
	t.Helper()
	sealed.once.Do(func() { sealed.up(t) })
	if sealed.err != nil {
		t.Fatal(sealed.err)
	}
	t.Cleanup(func() { quoteLogs(t, sealed.lab) })
	for _, n := range agents(sealed.lab) {
		keyed(t, sealed.lab, n)
	}
	return sealed.lab
}

func (s *sealedLab) up(t *testing.T) {
	spec := parseSpec(t, sealedNodes)
	spec.Name = labPrefix + "-sealed"
	if s.lab, s.err = lab.Up(context.Background(), spec,
		lab.Options{Binary: weftBinary, ReadyTimeout: labtest.ReadyTimeout}); s.err != nil {
		return
	}
	var spaces []string
	for _, p := range s.lab.Pods() {
		spaces = append(spaces, p.NetNS)
	}
	for _, n := range agents(s.lab) {
		spaces = append(spaces, n.NetNS)
	}
	for _, ns := range spaces {
		e, err := traffic.StartEcho(ns, echoPort)
		if err != nil {
			s.err = err
			return
		}
		s.echos = append(s.echos, e)
	}
}

func (s *sealedLab) down() {
	for _, e := range s.echos {
		e.Close()
	}
	if s.lab == nil {
		return
	}
	if err := s.lab.Down(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "take the sealed lab down:", err)
	}
}

// encryption asks an agent how packets are sealed.
func encryption(ctx context.Context, n *lab.Node) (*admin.Encryption, error) {
	return admin.NewClient(n.Socket).Encrypt(ctx)
}

// keyed waits until a node has keys with every other, both ways.
func keyed(t *testing.T, l *lab.Lab, n *lab.Node) {
	t.Helper()
	eventually(t, "keys between "+n.Name+" and the others",
		func() error { return hasKeys(t.Context(), l, n) })
}

func hasKeys(ctx context.Context, l *lab.Lab, n *lab.Node) error {
	e, err := encryption(ctx, n)
	if err != nil {
		return err
	}
	found := 0
	for _, p := range e.Peers {
		if l.Node(p.Node) == nil || l.Node(p.Node).Bare {
			continue
		}
		if found++; p.SendEpoch == 0 || p.ReceiveEpoch == 0 {
			return fmt.Errorf("peer %s of %s: %+v; problems: %v", p.Node, n.Name, p, e.Problems)
		}
	}
	if found < len(agents(l))-1 {
		return fmt.Errorf("%s knows %d peers", n.Name, found)
	}
	return nil
}

// wireWatch looks at everything that passes the cable to node a: what the switch gets from it and
// sends to it.
type wireWatch struct {
	capture  *encryptcheck.Capture
	mu       sync.Mutex
	detector *encryptcheck.Detector
	each     func(encryptcheck.Frame)
	cancel   context.CancelFunc
	done     chan error
	stopped  bool
}

// podRules say that everything of the lab's pods and agents' nodes among themselves must be sealed.
func podRules(l *lab.Lab) encryptcheck.Rules {
	var rules encryptcheck.Rules
	for _, n := range agents(l) {
		rules.Pods, rules.Nodes = append(rules.Pods, n.PodCIDRs...), append(rules.Nodes,
			n.Addresses...)
	}
	return rules
}

// wireNS is the namespace of the lab's wire with its ports p0, p1 … in the nodes' order.
func wireNS(l *lab.Lab) string { return netns.Path("weft-" + l.Name() + "-wire-w0") }

// watchWire begins to watch. each, if not nil, is called with every frame.
func watchWire(t *testing.T, l *lab.Lab, rules encryptcheck.Rules,
	each func(encryptcheck.Frame)) *wireWatch {
	t.Helper()
	capture, err := encryptcheck.Open(wireNS(l), "p0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &wireWatch{capture: capture, detector: encryptcheck.NewDetector(rules), each: each,
		cancel: cancel, done: make(chan error, 1)}
	go func() {
		w.done <- capture.Run(ctx, func(f encryptcheck.Frame) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.detector.Frame(f)
			if w.each != nil {
				w.each(f)
			}
		})
	}()
	t.Cleanup(func() { w.stop(t) })
	return w
}

// stop ends the watch; what was captured until now is in the report.
func (w *wireWatch) stop(t *testing.T) encryptcheck.Report {
	t.Helper()
	if !w.stopped {
		w.stopped = true
		w.cancel()
		if err := <-w.done; err != nil {
			t.Error(err)
		}
		if lost := w.capture.Lost(); lost > 0 {
			t.Errorf("the capture lost %d frames: what was in them nobody knows", lost)
		}
		w.capture.Close()
	}
	return w.detector.Report()
}

// sealedTo counts the sealed packets that were captured until now, by the node of the two at the
// cable that they go to.
func (w *wireWatch) sealedTo(l *lab.Lab) map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	report, seen := w.detector.Report(), map[string]uint64{}
	for _, n := range agents(l) {
		if n.Name != "a" && n.Name != "b" {
			continue
		}
		seen[n.Name] = 0
		for _, a := range n.Addresses {
			seen[n.Name] += report.SealedTo[a]
		}
	}
	return seen
}

// allSealed ends the watch and holds it to have seen sealed packets both ways, and nothing of pods
// in cleartext.
func (w *wireWatch) allSealed(t *testing.T, l *lab.Lab) {
	t.Helper()
	r := w.stop(t)
	if !r.Clean() {
		t.Errorf("readable on the wire: %d packets, %d markers: %+v", r.Plain, r.Markers, r.Finds)
	}
	for node, seen := range w.sealedTo(l) {
		if seen == 0 {
			t.Errorf("no sealed packet to node %s was seen: %+v", node, r)
		}
	}
}

// crossPairs are the ordered pairs of pods on different nodes.
func crossPairs(l *lab.Lab) []path {
	var out []path
	for _, from := range l.Pods() {
		for _, to := range l.Pods() {
			if from.Node != to.Node {
				out = append(out, path{from, to})
			}
		}
	}
	return out
}

// encryptDrops are an agent's drops that have to do with encryption, by name.
func encryptDrops(t *testing.T, n *lab.Node) map[string]uint64 {
	t.Helper()
	e, err := encryption(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, d := range e.Errors {
		out[d.Reason] = d.Packets
	}
	return out
}

// newDrops are those that were not there before.
func newDrops(t *testing.T, n *lab.Node, before map[string]uint64) string {
	t.Helper()
	now := encryptDrops(t, n)
	text := ""
	for _, reason := range slices.Sorted(maps.Keys(now)) {
		if more := now[reason] - before[reason]; more > 0 {
			text += fmt.Sprintf("%s %d ", reason, more)
		}
	}
	return text
}

// epochs are the numbers that a node and its peers send and receive with.
func newestEpoch(ctx context.Context, l *lab.Lab) (uint64, error) {
	var newest uint64
	for _, n := range agents(l) {
		e, err := encryption(ctx, n)
		if err != nil {
			return 0, err
		}
		for _, p := range e.Peers {
			newest = max(newest, p.SendEpoch, p.ReceiveEpoch)
		}
	}
	return newest, nil
}

// onEpoch says whether all agents send and receive with an epoch, or a newer one.
func onEpoch(ctx context.Context, l *lab.Lab, number uint64) error {
	var errs []error
	for _, n := range agents(l) {
		e, err := encryption(ctx, n)
		if err != nil {
			return err
		}
		for _, p := range e.Peers {
			if known := l.Node(p.Node); known == nil || known.Bare {
				continue
			}
			if p.SendEpoch < number || p.ReceiveEpoch < number {
				errs = append(errs,
					fmt.Errorf("%s to %s sends with %d and receives with %d, not %d: %s; %v",
						n.Name, p.Node, p.SendEpoch, p.ReceiveEpoch, number, p.Problem, e.Problems))
			}
		}
	}
	return errors.Join(errs...)
}

// addrPort is an address of a pod or node with a port.
func addrPort(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// soon waits a little for what must not happen.
func soon() { time.Sleep(150 * time.Millisecond) }

// sealsAgain waits until a node's sealer seals and opens more than it has.
func sealsAgain(t *testing.T, load *load, n *lab.Node) {
	t.Helper()
	load.flowing(t, "through the sealer of "+n.Name)
	var before *admin.Sealer
	eventually(t, "more through the sealer of "+n.Name, func() error {
		now, err := sealerOf(t.Context(), n)
		if err != nil {
			return err
		}
		if before == nil {
			before = now
		}
		if now.Sealed.Packets < before.Sealed.Packets+1000 ||
			now.Opened.Packets < before.Opened.Packets+1000 {
			return fmt.Errorf("%+v, before %+v", now, before)
		}
		return nil
	})
}

// seals waits until a node's sealer has sealed some packets more.
func seals(t *testing.T, n *lab.Node, packets uint64) {
	t.Helper()
	var before *admin.Sealer
	eventually(t, "the sealer of "+n.Name+" to seal", func() error {
		now, err := sealerOf(t.Context(), n)
		if err != nil {
			return err
		}
		if before == nil {
			before = now
		}
		if now.Sealed.Packets < before.Sealed.Packets+packets {
			return fmt.Errorf("%+v, before %+v", now.Sealed, before.Sealed)
		}
		return nil
	})
}
