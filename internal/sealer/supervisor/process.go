package supervisor

import (
	"context"
	"errors"
	"fmt"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/sealer/control"
)

// process is a sealer that answers.
type process struct {
	client *control.Client
	hello  control.Hello
	// held are the keys that it has, marked those of which the programs know.
	held, marked map[control.Held]bool
	// swept: no SA is marked but those of held.
	swept bool
	// before is the one that it takes the tap over from.
	before *control.Client
	// started is set for one that this agent has started.
	started *control.Process
}

func newProcess(client *control.Client) *process {
	return &process{client: client, held: map[control.Held]bool{}, marked: map[control.Held]bool{}}
}

func (p *process) current(build string) bool {
	return p.hello.Protocol == control.Protocol && p.hello.Build == build
}

// begin gives the process all that it needs and has it read the tap. The one before stops first, so
// that no two of them send packets of a flow out of order.
func (p *process) begin(ctx context.Context, opt Options) error {
	if err := p.client.Configure(ctx, control.Config{ESPPort: opt.Port}); err != nil {
		return err
	}
	if err := p.give(ctx, opt.Datapath); err != nil {
		return err
	}
	if p.before != nil {
		// Between the two of them nobody reads the tap: an agent that is ended now finishes this.
		ctx = context.WithoutCancel(ctx)
		if err := p.replace(ctx); err != nil {
			return fmt.Errorf("end the sealer that was there: %w", err)
		}
	}
	if p.started != nil {
		if err := p.started.Publish(); err != nil {
			return err
		}
	}
	if err := p.sync(ctx, opt.Datapath); err != nil {
		return err
	}
	return p.client.Begin(ctx)
}

// replace has the process before end. Each step has control.Timeout.
func (p *process) replace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*control.Timeout)
	defer cancel()
	quit, stop := context.WithTimeout(ctx, control.Timeout)
	defer stop()
	before := p.before
	if err := before.Quit(quit); err != nil {
		if err := before.Kill(); err != nil {
			return err
		}
	}
	// Kept until it is gone: abandon asks it.
	select {
	case <-before.Done():
	case <-ctx.Done():
		if err := before.Kill(); err != nil {
			return err
		}
	}
	p.before = nil
	return before.Close()
}

// abandon is for a process that did not begin. One that an earlier agent has begun goes on if this
// agent is ended, and so does one that was to be replaced if it answers. What else there is is
// killed.
func (p *process) abandon(ctx context.Context) error {
	ended := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*control.Timeout)
	defer cancel()
	var err error
	if p.started != nil || !ended {
		err = end(ctx, p.client)
	}
	if p.before != nil {
		if _, dead := p.before.Hello(ctx); dead != nil {
			err = errors.Join(err, p.before.Kill())
		}
	}
	return err
}

// close closes the connections. Processes go on.
func (p *process) close() {
	p.client.Close() //nolint:errcheck // nothing is written to it
	if p.before != nil {
		p.before.Close() //nolint:errcheck // nothing is written to it
	}
}

// sync gives the process the keys that it is to have, marks those that it has, and has it forget
// the others. Nothing is marked that it does not hold.
func (p *process) sync(ctx context.Context, dp Datapath) error {
	wanted := dp.SealerKeys()
	want := make(map[control.Held]bool, len(wanted))
	for _, k := range wanted {
		want[heldOf(k)] = true
	}
	var gone []control.Held
	for held := range p.held {
		if !want[held] {
			gone = append(gone, held)
		}
	}
	if err := p.unmark(dp, wanted, gone); err != nil {
		return err
	}
	if len(gone) > 0 {
		if err := p.client.Remove(ctx, gone...); err != nil {
			return err
		}
		for _, held := range gone {
			delete(p.held, held)
			delete(p.marked, held)
		}
	}
	if err := p.install(ctx, dp, wanted); err != nil {
		return err
	}
	for _, k := range wanted {
		held := heldOf(k)
		if !p.held[held] || p.marked[held] {
			continue
		}
		if err := dp.MarkSealer(k, true); err != nil {
			return err
		}
		p.marked[held] = true
	}
	return nil
}

// unmark has the programs not count on keys that are about to go, the first time on any that the
// process does not hold.
func (p *process) unmark(dp Datapath, wanted []esp.SealerKey, gone []control.Held) error {
	if p.swept {
		for _, held := range gone {
			if err := dp.MarkSealer(keyOf(held), false); err != nil {
				return err
			}
		}
		return nil
	}
	var stay []esp.SealerKey
	for _, k := range wanted {
		if p.held[heldOf(k)] {
			stay = append(stay, k)
		}
	}
	if err := dp.UnmarkSealer(stay...); err != nil {
		return err
	}
	p.swept = true
	return nil
}

// give has the process hold all keys that it is to have. The programs are not told yet.
func (p *process) give(ctx context.Context, dp Datapath) error {
	return p.install(ctx, dp, dp.SealerKeys())
}

// install has the process hold those of the keys that it does not.
func (p *process) install(ctx context.Context, dp Datapath, wanted []esp.SealerKey) error {
	keys := make([]control.Key, 0, len(wanted)) // does not grow: a copy would stay
	defer func() { control.Wipe(keys) }()
	for _, k := range wanted {
		if p.held[heldOf(k)] || !dp.SealerSecret(&k) { // gone meanwhile, which is told
			continue
		}
		keys = append(keys,
			control.Key{Out: k.Out, SA: k.ID, Fingerprint: k.Fingerprint, Key: k.Key, Salt: k.Salt})
		k.Wipe()
	}
	if err := p.client.Install(ctx, keys...); err != nil {
		return err
	}
	for i := range keys {
		p.held[keys[i].Held()] = true
	}
	return nil
}

func keyOf(held control.Held) esp.SealerKey {
	return esp.SealerKey{Out: held.Out, ID: held.SA, Fingerprint: held.Fingerprint}
}

func heldOf(k esp.SealerKey) control.Held {
	return control.Held{Out: k.Out, SA: k.ID, Fingerprint: k.Fingerprint}
}

// end says how the process has ended.
func (p *process) end() error {
	var err error
	if p.started != nil {
		err = p.started.Wait()
	}
	if err == nil {
		return errors.New("it has ended")
	}
	return fmt.Errorf("it has ended: %w", err)
}
