// Package supervisor has a sealer run while the agent does: it starts weft-sealer, or takes over
// one that an earlier agent has left, gives it the keys that it is to have, and has the programs
// hand packets to it while it lives. The process stays when the agent ends.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/sealer/control"
)

// Datapath is what the supervisor needs of a node.
type Datapath interface {
	Tap
	Keys
}

// Tap is where packets for the process go. *datapath.Datapath is one.
type Tap interface {
	// PrepareSealer makes the tap, hooked, if it is not there.
	PrepareSealer() error
	// OpenSealerTap opens the tap for a process to read; netdev.ErrSealerInUse says that one does.
	OpenSealerTap() (*os.File, error)
	// RemoveSealerTap takes the tap away, which ends a process that reads it.
	RemoveSealerTap() error
	// SetSealer says whether the programs may give packets to the process.
	SetSealer(on bool) error
	// SealerLost counts the frames that the tap's queue had no room for.
	SealerLost() (uint64, error)
}

// Keys are the SAs as the supervisor sees them. *esp.Associations is one.
type Keys interface {
	SealerChanged() <-chan struct{}
	SealerKeys() []esp.SealerKey
	SealerSecret(*esp.SealerKey) bool
	AdoptSealerKey(*esp.SealerKey) (bool, error)
	MarkSealer(k esp.SealerKey, holds bool) error
	// UnmarkSealer says that no process holds any key but these.
	UnmarkSealer(but ...esp.SealerKey) error
}

// Options are what a Supervisor needs.
type Options struct {
	Datapath Datapath
	// Socket is the path of the process's control socket.
	Socket string
	// Port is the UDP port of ESP.
	Port uint16
	// Build is this agent's version: a process of another is replaced.
	Build string
	// Problem is told what keeps the process from running, nil once it runs.
	Problem func(error)
	Log     *slog.Logger
}

// Status is what is known of the process.
type Status struct {
	// PID is 0 while there is none.
	PID     int
	Build   string
	Started time.Time
	// Starts counts the processes that this agent has started.
	Starts int
	Stats  control.Stats
	// Lost are frames that found the tap's queue full, since the tap was made.
	Lost uint64
}

// Supervisor keeps a sealer running.
type Supervisor struct {
	opt Options

	mu     sync.Mutex
	status Status
}

// New makes a Supervisor; Run does its work.
func New(opt Options) *Supervisor { return &Supervisor{opt: opt} }

const (
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second
	// steady is how long a process must have lived for its end to be no reason to wait.
	steady = 10 * time.Second
	// statsEvery is how often the process is asked what it has done, and whether it answers.
	statsEvery = 2 * time.Second
)

// Run keeps a sealer running until ctx ends; then the process stays.
func (s *Supervisor) Run(ctx context.Context) error {
	wait := time.Duration(0)
	for ctx.Err() == nil {
		began := time.Now()
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// Packets go the other way at once, before another process is looked for.
		err = errors.Join(err, s.opt.Datapath.SetSealer(false), s.opt.Datapath.UnmarkSealer())
		s.ended()
		s.opt.Problem(fmt.Errorf("sealer: %w: bulk traffic is sealed by the hooks", err))
		wait = min(max(2*wait, retryMin), retryMax)
		if time.Since(began) > steady {
			wait = 0
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// Status is what is known of the process now.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// serve has one process work until it ends or something about it fails.
func (s *Supervisor) serve(ctx context.Context) error {
	if err := s.opt.Datapath.PrepareSealer(); err != nil {
		return err
	}
	process, err := s.find(ctx)
	if err != nil {
		return err
	}
	defer process.close()
	if err := process.begin(ctx, s.opt); err != nil {
		return errors.Join(err, process.abandon(ctx))
	}
	if err := s.opt.Datapath.SetSealer(true); err != nil {
		return err
	}
	s.opt.Problem(nil)
	s.began(process)
	return s.follow(ctx, process)
}

// follow gives the process the keys that change, until it ends.
func (s *Supervisor) follow(ctx context.Context, p *process) error {
	tick := time.NewTicker(statsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.client.Done():
			return p.end()
		case <-s.opt.Datapath.SealerChanged():
			err := p.sync(ctx, s.opt.Datapath)
			if err != nil && ctx.Err() == nil {
				return errors.Join(err, p.client.Kill())
			}
		case <-tick.C:
			stats, err := p.client.Stats(ctx)
			if err != nil && ctx.Err() == nil {
				return errors.Join(err, p.client.Kill())
			}
			lost, err := s.opt.Datapath.SealerLost()
			if err != nil {
				return err
			}
			s.mu.Lock()
			s.status.Stats, s.status.Lost = stats, lost
			s.mu.Unlock()
		}
	}
}

func (s *Supervisor) began(p *process) {
	s.opt.Log.Info("sealer runs", "pid", p.client.PID(), "version", p.hello.Build)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.PID, s.status.Build, s.status.Started = p.client.PID(), p.hello.Build, time.Now()
}

func (s *Supervisor) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.PID = 0
}
