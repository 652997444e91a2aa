package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/bench/load"
)

// settleTimeout is how long a new harness may take until packets get through: neighbours
// are resolved and agents learn of each other's pods meanwhile.
const settleTimeout = 10 * time.Second

// settleEvery is how often that is tried.
const settleEvery = 50 * time.Millisecond

// retry calls fn until it returns nil, ctx ends or settleTimeout is over.
func retry(ctx context.Context, fn func() error) error {
	deadline := time.Now().Add(settleTimeout)
	for {
		err := fn()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(settleEvery):
		}
	}
}

// sinkNotice is how long agents get to see that the wire takes XDP frames now: the
// kernel announces that when the sink is attached at the far end.
const sinkNotice = 300 * time.Millisecond

// settle sends a few frames at a time until one is counted.
func (g *genPrograms) settle(ctx context.Context, cpu int) error {
	time.Sleep(sinkNotice)
	return retry(ctx, func() error {
		_, err := g.coll.Programs["bench_gen"].Run(&ebpf.RunOptions{
			Data: g.spec.frame(), Repeat: batchSize, Flags: liveFrames, BatchSize: batchSize,
		})
		if err != nil {
			return fmt.Errorf("run generator: %w", err)
		}
		seen, err := g.counters(cpu)
		if err == nil && seen.counted == 0 {
			err = fmt.Errorf("no frame from %s to %s reached the sink for %s", g.spec.src,
				g.spec.dst, settleTimeout)
		}
		return err
	})
}

// connectable waits until TCP connects between all pods that tests let talk.
func (b *harness) connectable(ctx context.Context) error {
	if b.shape != shapePair {
		return nil
	}
	for _, between := range []func(*harness) (pod, pod){remote, local} {
		from, to := between(b)
		err := load.Reach(from.peer(), to.peer(),
			func(try func() error) error { return retry(ctx, try) })
		if err != nil {
			return fmt.Errorf("harness %s: pod %s: %w", b.variant, from.IP, err)
		}
	}
	return nil
}
