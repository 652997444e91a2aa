package demo

import (
	"context"
	"fmt"
	"time"

	"weft.dev/weft/internal/front/admin"
)

// rotations is how often the keys are changed under load.
const rotations = 10

// rotate changes keys again and again while streams run.
func (d *demo) rotate(ctx context.Context) error {
	streams, err := d.startStreams(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	first, last, rotateErr := d.changeKeys(ctx)
	took := time.Since(began)
	if rotateErr == nil {
		rotateErr = pause(ctx, quiet)
	}
	seconds := time.Since(began).Seconds()
	tcp, udp := stopStreams(streams)
	if rotateErr != nil {
		return rotateErr
	}
	d.say("The same streams run, and every key between the nodes is changed %d times, as `weft keys rotate` does it: a new epoch, a new TLS 1.3 handshake of the agents, new keys in the kernel, receivers first; the next change begins when all use the one before.", rotations)
	d.showTable(streamTable(streams, tcp, udp))
	d.judge("rotate", streams, tcp, udp, seconds)
	d.check("rotate-epochs", last == first+rotations,
		"epoch %d, then %d: %d changes of all keys in %.1f s, both directions on the newest", first,
		last, rotations, took.Seconds())
	lost, sent := uint64(0), uint64(0)
	for _, u := range udp {
		lost, sent = lost+u.Lost, sent+u.Sent
	}
	d.fact(fmt.Sprintf("%d of %d", lost, sent),
		fmt.Sprintf("packets lost while all keys changed %d times", rotations))
	return d.run(ctx, "keys", "status", "--instance", d.lab.Node(nodeA).Instance)
}

// changeKeys makes new epochs one after another; it returns the first and the last in use.
func (d *demo) changeKeys(ctx context.Context) (first, last uint64, err error) {
	client := admin.NewClient(d.lab.Node(nodeA).Socket)
	e, err := client.Encrypt(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("ask for the epoch in use: %w", err)
	}
	if e.Epoch == nil {
		return 0, 0, fmt.Errorf("no epoch is in use")
	}
	first = e.Epoch.Number
	for range rotations {
		epoch, err := client.RotateKeys(ctx)
		if err != nil {
			return first, last, fmt.Errorf("make a new epoch: %w", err)
		}
		for {
			behind, err := d.behind(ctx, epoch.Number)
			if err != nil {
				return first, last, err
			}
			if behind == 0 {
				break
			}
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return first, last, fmt.Errorf("wait for epoch %d: %w", epoch.Number, err)
			}
		}
		last = epoch.Number
	}
	return first, last, nil
}
