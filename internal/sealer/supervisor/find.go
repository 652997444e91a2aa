package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/sealer/control"
)

// patience is for how long a process that does not answer is asked again before it is killed: its
// copies of the keys may be the only ones.
const patience = 3 * control.Timeout

// find takes over the process of an earlier agent, or starts one. One of another build hands its
// keys and its tap to the new one; what lies in the tap meanwhile waits.
func (s *Supervisor) find(ctx context.Context) (*process, error) {
	s.endUnpublished(ctx)
	old, tap, err := s.adopt(ctx)
	if err != nil {
		return nil, err
	}
	if tap != nil {
		defer tap.Close()
	}
	if old != nil && old.current(s.opt.Build) {
		return old, nil
	}
	if old == nil {
		// No process holds a key. Until the next one does, nothing may count on it.
		if err := errors.Join(s.opt.Datapath.SetSealer(false),
			s.opt.Datapath.UnmarkSealer()); err != nil {
			return nil, err
		}
		if tap, err = s.openTap(); err != nil {
			return nil, err
		}
		defer tap.Close()
	}
	fresh, err := s.start(ctx, tap)
	if err != nil {
		if old != nil {
			err = errors.Join(err, old.client.Close()) // it stays
		}
		return nil, err
	}
	if old != nil {
		s.opt.Log.Info("sealer of another version is replaced", "pid", old.client.PID(), "version",
			old.hello.Build)
		fresh.before = old.client
	}
	return fresh, nil
}

// openTap opens the tap. Whoever reads it cannot be reached: it ends with the tap.
func (s *Supervisor) openTap() (*os.File, error) {
	tap, err := s.opt.Datapath.OpenSealerTap()
	if !errors.Is(err, netdev.ErrSealerInUse) {
		return tap, err
	}
	s.opt.Log.Warn("a process that does not answer reads the sealer's tap, which is made anew")
	if err := errors.Join(s.opt.Datapath.RemoveSealerTap(),
		s.opt.Datapath.PrepareSealer()); err != nil {
		return nil, err
	}
	return s.opt.Datapath.OpenSealerTap()
}

// endUnpublished ends a process that an earlier agent has started and not published: it did not
// begin.
func (s *Supervisor) endUnpublished(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client, err := control.DialUnpublished(ctx, s.opt.Socket)
	if err != nil {
		return
	}
	s.opt.Log.Warn("a sealer that was never begun is ended", "pid", client.PID())
	if err := end(ctx, client); err != nil {
		s.opt.Log.Warn("a sealer that was never begun stays", "err", err)
	}
}

// end kills a process, waits for its end, and closes the connection.
func end(ctx context.Context, client *control.Client) error {
	defer client.Close() //nolint:errcheck // the process is gone
	if err := client.Kill(); err != nil {
		return err
	}
	select {
	case <-client.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of sealer %d: %w", client.PID(), ctx.Err())
	}
}

// errUnfit says of a process that it is of no use, however often it is asked.
var errUnfit = errors.New("it cannot be taken over")

// adopt reaches a process that an earlier agent has left and takes copies of its keys, and its tap.
// Nil if there is none. One that does not answer is asked again and again before it is killed.
func (s *Supervisor) adopt(ctx context.Context) (*process, *os.File, error) {
	var silent *control.Client // that was reached last
	defer func() {
		if silent != nil {
			silent.Close() //nolint:errcheck // nothing is written to it
		}
	}()
	for began := time.Now(); ; {
		client, err := control.Dial(ctx, s.opt.Socket)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			return nil, nil, nil
		}
		if err == nil {
			if silent != nil {
				silent.Close() //nolint:errcheck // nothing is written to it
			}
			silent = client
			var p *process
			var tap *os.File
			if p, tap, err = s.takeOver(ctx, client); err == nil {
				silent = nil
				return p, tap, nil
			}
		}
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		if errors.Is(err, errUnfit) || errors.Is(err, control.ErrNotSealer) ||
			time.Since(began) > patience {
			s.opt.Log.Warn("the sealer that was there is not taken over", "err", err)
			if silent == nil {
				return nil, nil, nil
			}
			client, silent = silent, nil
			return nil, nil, end(ctx, client)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryMin):
		}
	}
}

// takeOver takes copies of a process's keys, and its tap.
func (s *Supervisor) takeOver(ctx context.Context,
	client *control.Client) (*process, *os.File, error) {
	p := newProcess(client)
	var err error
	if p.hello, err = client.Hello(ctx); err != nil {
		return nil, nil, unfit(err)
	}
	if p.hello.Protocol != control.Protocol || !p.hello.Begun {
		return nil, nil, fmt.Errorf("%w: protocol %d, begun: %v", errUnfit, p.hello.Protocol,
			p.hello.Begun)
	}
	keys, tap, err := client.Export(ctx)
	if err != nil {
		return nil, nil, unfit(err)
	}
	defer control.Wipe(keys)
	for i := range keys {
		k := esp.SealerKey{Out: keys[i].Out, ID: keys[i].SA, Fingerprint: keys[i].Fingerprint,
			Key: keys[i].Key, Salt: keys[i].Salt}
		// What is not taken over is none of SealerKeys: begin unmarks it, and has the process
		// forget it.
		if _, err := s.opt.Datapath.AdoptSealerKey(&k); err != nil {
			s.opt.Log.Warn("a key of the sealer's is not taken over", "err", err)
		}
		k.Wipe()
		p.held[keys[i].Held()] = true
	}
	return p, tap, nil
}

// unfit tells answers that will be the same next time.
func unfit(err error) error {
	if errors.Is(err, control.ErrRefused) {
		return fmt.Errorf("%w: %w", errUnfit, err)
	}
	return err
}

func (s *Supervisor) start(ctx context.Context, tap *os.File) (*process, error) {
	started, err := control.Start(ctx,
		control.Options{Tap: tap, SocketPath: s.opt.Socket, Log: s.opt.Log})
	if err != nil {
		return nil, err
	}
	p := newProcess(started.Client)
	p.started = started
	if p.hello, err = p.client.Hello(ctx); err == nil && p.hello.Protocol != control.Protocol {
		err = fmt.Errorf("%s is of another version than this agent (protocol %d, want %d): install both of one",
			control.Program, p.hello.Protocol, control.Protocol)
	}
	if err != nil {
		return nil, errors.Join(err, p.abandon(ctx), p.client.Close())
	}
	s.mu.Lock()
	s.status.Starts++
	s.mu.Unlock()
	return p, nil
}
