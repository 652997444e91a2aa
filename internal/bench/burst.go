package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	// firstBurst takes about a tenth of a second on the fastest path, slowBurst on the slowest.
	firstBurst, slowBurst = 1 << 18, 1 << 13
	// longestBurst bounds how long a system call, which nothing can end early, runs.
	longestBurst = 2 * time.Second
	// edge is what is cut off at both ends of a burst.
	edge = 20 * time.Millisecond
	// peek is how often a running burst is looked at.
	peek = 5 * time.Millisecond
)

// burstLength returns how many frames last for about the rest of a run, or for
// longestBurst, and the burst's edges; at least as many as the first.
func burstLength(seen genWindow, rest time.Duration, first uint32) uint32 {
	rate := float64(seen.counted) / seen.wall.Seconds()
	return uint32(min(max(rate*(min(rest, longestBurst)+4*edge).Seconds(), float64(first)), 1<<31))
}

// burst sends n frames in one system call while another thread reads the counters.
func (g *genPrograms) burst(cpu int, n uint32) (genResult, error) {
	before, err := g.counters(cpu)
	if err != nil {
		return genResult{}, err
	}
	softirqd, err := ksoftirqd(cpu)
	if err != nil {
		return genResult{}, err
	}
	watch := g.watch(cpu, clocks{threadClock(unix.Gettid()), processClock(softirqd)})
	_, runErr := g.coll.Programs["bench_gen"].Run(&ebpf.RunOptions{
		Data: g.spec.frame(), Repeat: n, Flags: liveFrames, BatchSize: batchSize,
	})
	window, watchErr := watch()
	after, err := g.counters(cpu)
	if err := errors.Join(runErr, watchErr, err); err != nil {
		return genResult{}, fmt.Errorf("run generator: %w", err)
	}
	res := genResult{sent: after.sent - before.sent, counted: after.counted - before.counted,
		here: after.here - before.here, window: window}
	switch {
	case res.counted == 0:
		return res, fmt.Errorf("none of %d frames from %s reached the sink", res.sent, g.spec.src)
	case window.counted == 0:
		return res, fmt.Errorf("%w: %d frames", errShort, n)
	}
	return res, nil
}

// look is one reading of the counters.
type look struct {
	at      time.Time
	counted uint64
	cpu     time.Duration
}

// watch reads the counters every peek until the returned function is called, which
// gives the span from the first to the last reading inside the burst's edges.
func (g *genPrograms) watch(cpu int, spent clocks) func() (genWindow, error) {
	stop := make(chan struct{})
	done := make(chan error, 1)
	var looks []look
	go func() {
		tick := time.NewTicker(peek)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				done <- nil
				return
			case <-tick.C:
			}
			l, err := g.look(cpu, spent)
			if err != nil {
				done <- err
				return
			}
			looks = append(looks, l)
		}
	}()
	return func() (genWindow, error) {
		close(stop)
		err := <-done
		return spanOf(looks), err
	}
}

// look reads the sink's count and the CPU time spent on the way there.
func (g *genPrograms) look(cpu int, spent clocks) (look, error) {
	c, err := g.counters(cpu)
	if err != nil {
		return look{}, err
	}
	total, err := spent.read()
	return look{at: time.Now(), counted: c.counted, cpu: total}, err
}

// spanOf finds the span that the rate is taken from: it starts with the reading an
// edge after frames began to arrive and ends an edge before they ceased to.
func spanOf(looks []look) genWindow {
	first, last := -1, -1
	for i := 1; i < len(looks); i++ {
		if looks[i].counted > looks[i-1].counted {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first < 0 {
		return genWindow{}
	}
	from, to := first, last
	for from < to && looks[from].at.Sub(looks[first].at) < edge {
		from++
	}
	for to > from && looks[last].at.Sub(looks[to].at) < edge {
		to--
	}
	return genWindow{
		counted: looks[to].counted - looks[from].counted,
		wall:    looks[to].at.Sub(looks[from].at),
		cpu:     looks[to].cpu - looks[from].cpu,
	}
}
