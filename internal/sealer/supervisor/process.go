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
	// before is the one that it takes the tap over from.
	before *control.Client
	// wait is set for one that this agent has started.
	wait func() error
}

func newProcess(client *control.Client) *process {
	return &process{client: client, held: map[control.Held]bool{}, marked: map[control.Held]bool{}}
}

func (p *process) current(build string) bool {
	return p.hello.Protocol == control.Protocol && p.hello.Build == build
}

// begin gives the process all that it needs and has it read the tap. The one before stops first, so that no two
// of them send packets of a flow out of order.
func (p *process) begin(ctx context.Context, opt Options) error {
	if err := p.client.Configure(ctx, control.Config{ESPPort: opt.Port}); err != nil {
		return err
	}
	if err := p.sync(ctx, opt.Datapath); err != nil {
		return err
	}
	if p.before != nil {
		err := p.before.Quit(ctx)
		if err != nil {
			err = p.before.Kill()
		}
		if err := errors.Join(err, p.before.Close()); err != nil {
			return fmt.Errorf("end the sealer that was there: %w", err)
		}
		p.before = nil
	}
	return p.client.Begin(ctx)
}

// sync gives the process the keys that it is to have, marks those that it has, and has it forget the others.
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
	if len(gone) > 0 {
		if err := p.client.Remove(ctx, gone...); err != nil {
			return err
		}
		for _, held := range gone {
			delete(p.held, held)
			delete(p.marked, held)
		}
	}
	for _, k := range wanted {
		if err := p.give(ctx, dp, k); err != nil {
			return err
		}
	}
	return nil
}

// give has the process hold a key, and then has the programs know.
func (p *process) give(ctx context.Context, dp Datapath, k esp.SealerKey) error {
	held := heldOf(k)
	if p.marked[held] {
		return nil
	}
	if !p.held[held] {
		if !dp.SealerSecret(&k) {
			return nil // gone meanwhile, which is told
		}
		key := control.Key{Out: k.Out, SA: k.ID, Fingerprint: k.Fingerprint, Key: k.Key, Salt: k.Salt}
		k.Wipe()
		err := p.client.Install(ctx, key)
		key.Wipe()
		if err != nil {
			return err
		}
		p.held[held] = true
	}
	if err := dp.MarkSealer(k, true); err != nil {
		return err
	}
	p.marked[held] = true
	return nil
}

func heldOf(k esp.SealerKey) control.Held {
	return control.Held{Out: k.Out, SA: k.ID, Fingerprint: k.Fingerprint}
}

// end says how the process has ended.
func (p *process) end() error {
	var err error
	if p.wait != nil {
		err = p.wait()
	}
	if err == nil {
		return errors.New("it has ended")
	}
	return fmt.Errorf("it has ended: %w", err)
}
