package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/netns"
)

// benchObject is bpf/bench/bench.bpf.c, compiled.
//
//go:embed obj/bench.o
var benchObject []byte

// liveFrames is BPF_F_TEST_XDP_LIVE_FRAMES: BPF_PROG_RUN sends what the program
// redirects instead of only returning its verdict.
const liveFrames = 1 << 1

// batchSize is how many frames the kernel sends between two softirq runs. It is
// NAPI's own weight, so that no veth ring overflows.
const batchSize = 64

// genResult is what one generator run did.
type genResult struct {
	sent    uint64 // all frames of the run
	counted uint64 // of those, at the sink
	here    uint64 // of those, on the generator's own CPU

	window genWindow
}

// genWindow is the part of a run that rates are taken from: in the middle of a
// system call, because setting one up and ending it waits for the kernel.
type genWindow struct {
	counted uint64
	wall    time.Duration
	cpu     time.Duration // of the generator's thread, the softirqs on it, and ksoftirqd
}

// sample turns the result into metrics. One CPU does all the work, generator,
// datapath and sink. ns_per_packet is its time that went into that; pps is over wall
// time and says the same as long as cpu_share is near 1: nobody else wants that CPU.
func (g genResult) sample() report.Sample {
	n := float64(g.window.counted)
	return report.Sample{
		"pps":           n / g.window.wall.Seconds(),
		"ns_per_packet": float64(g.window.cpu.Nanoseconds()) / n,
		"loss":          float64(g.sent-min(g.sent, g.counted)) / float64(g.sent),
		"same_cpu":      float64(g.here) / float64(g.counted),
		"cpu_share":     g.window.cpu.Seconds() / g.window.wall.Seconds(),
	}
}

// genPrograms are the generator and the sink of one harness, loaded for one frame.
type genPrograms struct {
	spec    frameSpec
	coll    *ebpf.Collection
	sinks   []link.Link
	harness *harness
}

// loadGen loads generator and sink and attaches the sink to the harness's far end.
func loadGen(b *harness, f frameSpec) (*genPrograms, error) {
	from := port{b.near[0].NS, b.near[0].If}
	out, err := ifindex(from)
	if err != nil {
		return nil, err
	}
	constants := map[string]any{
		"tmpl": [48]byte(append(f.header(), make([]byte, 6)...)), "out_ifindex": uint32(out),
		"flow_mask": uint16(f.flows - 1), "first_sport": uint16(firstSource),
		"dst_count": uint32(f.dsts), "dst_step": uint32(f.dstStep), "dst_rest": f.restSum(),
		"dst_first": binary.BigEndian.Uint32(f.dst.AsSlice()),
	}
	if b.sealed {
		constants["sink_port"] = uint16(espPort)
	}
	coll, err := loadPrograms(constants)
	if err != nil {
		return nil, err
	}
	g := &genPrograms{spec: f, coll: coll, harness: b}
	if err := g.attachSink(); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// attachSink hooks the far end by XDP, and inside a pod by TC, too: a node in mode tc hands over
// socket buffers where no XDP program sees them.
func (g *genPrograms) attachSink() error {
	l, err := attachXDP(g.harness.sink, g.coll.Programs["bench_sink"])
	if err != nil {
		return err
	}
	g.sinks = append(g.sinks, l)
	if g.harness.shape != shapeTunnel {
		return nil
	}
	index, err := ifindex(g.harness.sink)
	if err != nil {
		return err
	}
	err = netns.Do(g.harness.sink.NS, func() error {
		l, err = link.AttachTCX(link.TCXOptions{Program: g.coll.Programs["bench_sink_skb"],
			Interface: index, Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		return fmt.Errorf("attach program to %s: %w", g.harness.sink.If, err)
	}
	g.sinks = append(g.sinks, l)
	return nil
}

// loadPrograms loads bench.bpf.c with its constants set.
func loadPrograms(constants map[string]any) (*ebpf.Collection, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(benchObject))
	if err != nil {
		return nil, fmt.Errorf("read benchmark programs: %w", err)
	}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of benchmark programs: %w", name, err)
		}
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load benchmark programs: %w", err)
	}
	return coll, nil
}

// close detaches the sink and unloads.
func (g *genPrograms) close() {
	for _, l := range g.sinks {
		l.Close()
	}
	g.coll.Close()
}

// run sends for at least dur from one CPU and counts at the sink.
func (g *genPrograms) run(ctx context.Context, dur time.Duration) (genResult, error) {
	var total genResult
	err := netns.Do(g.harness.near[0].NS, func() error {
		cpu, restore, err := pinLast()
		if err != nil {
			return err
		}
		defer restore()
		if err := g.settle(ctx, cpu); err != nil {
			return err
		}
		// The first one fills caches and tells the rate.
		first, err := g.measure(cpu, g.harness.firstBurst())
		if err != nil {
			return err
		}
		seen := first.window
		// A rest shorter than a quarter is not worth another burst's set-up.
		for total.window.wall < dur*3/4 && ctx.Err() == nil {
			res, err := g.measure(cpu,
				burstLength(seen, dur-total.window.wall, g.harness.firstBurst()))
			if err != nil {
				return err
			}
			seen = res.window
			total.add(res)
		}
		return ctx.Err()
	})
	if err != nil {
		return total, err
	}
	return total, g.check()
}

// measure sends a burst of n frames, or more if it is over before it can be measured.
func (g *genPrograms) measure(cpu int, n uint32) (genResult, error) {
	for ; ; n *= 2 {
		res, err := g.burst(cpu, n)
		if !errors.Is(err, errShort) || n >= 1<<28 {
			return res, err
		}
	}
}

// errShort means that a burst was over before its rate could be read.
var errShort = errors.New("burst too short to measure")

// add sums two bursts of one run.
func (g *genResult) add(b genResult) {
	g.sent += b.sent
	g.counted += b.counted
	g.here += b.here
	g.window.counted += b.window.counted
	g.window.wall += b.window.wall
	g.window.cpu += b.window.cpu
}

// counters reads what was sent and counted so far.
func (g *genPrograms) counters(cpu int) (genResult, error) {
	var res genResult
	if err := g.coll.Variables["sent"].Get(&res.sent); err != nil {
		return res, fmt.Errorf("read generator's count: %w", err)
	}
	var perCPU []uint64
	if err := g.coll.Maps["counted"].Lookup(uint32(0), &perCPU); err != nil {
		return res, fmt.Errorf("read sink's count: %w", err)
	}
	for i, n := range perCPU {
		res.counted += n
		if i == cpu {
			res.here += n
		}
	}
	return res, nil
}

// check verifies the first frame that arrived.
func (g *genPrograms) check() error {
	var got [sampleLen]byte
	if err := g.coll.Variables["sample"].Get(&got); err != nil {
		return fmt.Errorf("read sink's sample: %w", err)
	}
	mac, err := hardwareAddr(g.harness.sink)
	if err != nil {
		return err
	}
	if g.harness.sealed {
		return g.spec.checkSealed(got[:], mac)
	}
	return g.spec.checkForwarded(got[:], mac, g.harness.hops)
}

// generate measures one harness with frames of a length over a number of flows.
func generate(ctx context.Context, b *harness, length, flows int,
	dur time.Duration) (genResult, error) {
	return generateTo(ctx, b, frameSpec{dst: b.sinkIP, length: length, flows: flows}, dur)
}

// generateTo measures one harness with frames from its first pod.
func generateTo(ctx context.Context, b *harness, f frameSpec,
	dur time.Duration) (genResult, error) {
	p := b.near[0]
	f.srcMAC, f.dstMAC, f.src = p.MAC, p.GatewayMAC, p.IP
	// Live frames enter the host's side of the veth as XDP frames: without a program
	// there only NAPI, which GRO switches on, takes them.
	if _, err := setFeatures(port{p.HostNS, p.HostIf}, true, "rx-gro"); err != nil {
		return genResult{}, err
	}
	g, err := loadGen(b, f)
	if err != nil {
		return genResult{}, err
	}
	defer g.close()
	return g.run(ctx, dur)
}

// attachXDP attaches a program natively to an interface of a namespace.
func attachXDP(p port, prog *ebpf.Program) (l link.Link, err error) {
	index, err := ifindex(p)
	if err != nil {
		return nil, err
	}
	err = netns.Do(p.NS, func() error {
		l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: index,
			Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("attach program to %s: %w", p.If, err)
	}
	return l, nil
}

// ifindex returns an interface's index in its namespace.
func ifindex(p port) (index int, err error) {
	err = onLink(p, func(_ *netlink.Handle, l netlink.Link) error {
		index = l.Attrs().Index
		return nil
	})
	return index, err
}

// pinLast pins the calling thread, which must be locked, to the last CPU that it may
// use (the first takes most interrupts) and returns how to undo that.
func pinLast() (cpu int, restore func(), err error) {
	runtime.LockOSThread()
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		runtime.UnlockOSThread()
		return 0, nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	cpu = -1
	for i := range len(old) * 64 {
		if old.IsSet(i) {
			cpu = i
		}
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return 0, nil, fmt.Errorf("pin thread to CPU %d: %w", cpu, err)
	}
	return cpu, func() {
		_ = unix.SchedSetaffinity(0, &old)
		runtime.UnlockOSThread()
	}, nil
}
