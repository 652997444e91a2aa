package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft.dev/weft/internal/bench/load"
	"weft.dev/weft/internal/bench/report"
)

// runFunc measures one harness once.
type runFunc func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error)

// test is one thing to measure.
type test struct {
	name  string
	group string
	shape shape
	// gen marks packet-rate tests: the generator alone is measured too.
	gen bool
	// extra tests run only when asked for by name or group.
	extra bool
	// endpoints is how many endpoints the near node needs before the test; 0 means as built.
	endpoints int
	// fill is what the nodes of a tunnel must hold before the test; nil means as built.
	fill *fill
	// weftOnly tests have no meaning without an agent.
	weftOnly bool
	run      runFunc
	// runMany replaces run where one run yields several samples of the same kind.
	runMany func(ctx context.Context, b *harness) ([]report.Sample, error)
}

// allTests lists every test in the order in which they run.
func allTests() []test {
	tests := []test{
		{name: "pps64", group: "pps", shape: shapeForward, gen: true, run: runPPS(64, 1)},
		{name: "pps64-flows1k", group: "pps", shape: shapeForward, gen: true,
			run: runPPS(64, 1024)},
		{name: "pps1400", group: "pps", shape: shapeForward, gen: true, run: runPPS(1400, 1)},
		{name: "tcp1-remote", group: "tcp", shape: shapePair, run: runBulk(1, remote)},
		{name: "tcp4-remote", group: "tcp", shape: shapePair, run: runBulk(4, remote)},
		{name: "tcp1-remote-wiremtu", group: "tcp", shape: shapePair,
			run: wireMTU(runBulk(1, remote))},
		{name: "tcp4-remote-wiremtu", group: "tcp", shape: shapePair,
			run: wireMTU(runBulk(4, remote))},
		{name: "tcp1-local", group: "tcp", shape: shapePair, run: runBulk(1, local)},
		{name: "tcp4-local", group: "tcp", shape: shapePair, run: runBulk(4, local)},
		{name: "rr1", group: "rr", shape: shapePair, run: runRR(1, remote)},
		{name: "rr16", group: "rr", shape: shapePair, run: runRR(16, remote)},
		{name: "rr1-local", group: "rr", shape: shapePair, run: runRR(1, local)},
		{name: "crr16", group: "crr", shape: shapePair, run: runCRR(16)},
		{name: "udp64", group: "udp", shape: shapePair, run: runUDP(64)},
	}
	for _, n := range []int{1, 10, 100, 1000} {
		tests = append(tests, test{
			name: fmt.Sprintf("scale-%d", n), group: "scale", shape: shapeForward,
			gen: true, extra: true, endpoints: n, run: runPPS(64, 1),
		})
	}
	return append(tests,
		test{name: "cni-add", group: "cni", shape: shapeForward, extra: true, weftOnly: true,
			runMany: runCNI},
		// Their harnesses are their own, as harnesses that grow are: a table that is full of a
		// flood's flows is no harness for others.
		test{name: "neighbor-idle", group: "neighbor", shape: shapePair, extra: true,
			weftOnly: true, endpoints: 2, run: runNeighbor(neighborIdle)},
		test{name: "neighbor-packets", group: "neighbor", shape: shapePair, extra: true,
			weftOnly: true, endpoints: 2, run: runNeighbor(neighborPackets)},
		test{name: "neighbor-flood", group: "neighbor", shape: shapePair, extra: true,
			weftOnly: true, endpoints: 2, run: runNeighbor(neighborFlood)},
		test{name: "agent", group: "agent", shape: shapeForward, extra: true, weftOnly: true,
			endpoints: agentEndpoints, run: runAgent},
	)
}

// Tests lists every test of Route by name.
func Tests() []string { return routeSuite().testNames(false) }

// DefaultTests lists what Route runs when Options.Tests is empty.
func DefaultTests() []string { return routeSuite().testNames(true) }

// Groups lists the names that stand for several tests: pps, tcp, rr, crr, udp, scale, cni,
// neighbor, agent and all.
func Groups() []string { return routeSuite().groups() }

// grows says whether the test changes the harnesses it runs on, for good.
func (t test) grows() bool { return t.endpoints > 0 || t.fill != nil }

// size orders tests that grow their harnesses.
func (t test) size() int {
	if t.fill != nil {
		return t.fill.peers*100_000 + t.fill.identities
	}
	return t.endpoints
}

// remote and local choose the pods that talk.
func remote(b *harness) (from, to pod) { return b.near[0], b.far[0] }
func local(b *harness) (from, to pod)  { return b.near[0], b.near[1] }

func runPPS(length, flows int) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		res, err := generate(ctx, b, length, flows, dur)
		if err != nil {
			return nil, err
		}
		return res.sample(), nil
	}
}

func runBulk(streams int, between func(*harness) (pod, pod)) runFunc {
	return runBulkBy("", streams, between)
}

// runBulkBy is runBulk with a congestion control of the sender's.
func runBulkBy(congestion string, streams int, between func(*harness) (pod, pod)) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		from, to := between(b)
		return load.Bulk(ctx, from.peer(), to.peer(), streams, congestion, dur)
	}
}

func runRR(n int, between func(*harness) (pod, pod)) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		from, to := between(b)
		return load.RR(ctx, from.peer(), to.peer(), n, dur)
	}
}

func runRRBesideBulk(n int) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		from, to := remote(b)
		return load.RRBesideBulk(ctx, from.peer(), to.peer(), n, dur)
	}
}

func runCRR(n int) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		from, to := remote(b)
		return load.CRR(ctx, from.peer(), to.peer(), n, dur)
	}
}

func runUDP(length int) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		from, to := remote(b)
		return load.UDP(ctx, from.peer(), to.peer(), length-headerLen, dur)
	}
}

// wireMTU runs a test with segmentation offload off on both ends of the wire, so
// that no packet larger than the MTU crosses it: nearer to a real network card.
func wireMTU(run runFunc) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (s report.Sample, err error) {
		for _, p := range b.wire {
			changed, err := setFeatures(p, false, segmentation...)
			if err != nil {
				return nil, err
			}
			defer func() {
				if _, e := setFeatures(p, true, changed...); e != nil {
					s, err = nil, errors.Join(err, e)
				}
			}()
		}
		return run(ctx, b, dur)
	}
}

// isWeft tells variants with an agent from the baselines.
func isWeft(variant string) bool {
	return !slices.Contains([]string{VariantPlain, VariantIPTables, VariantBare, report.Generator},
		variant)
}
