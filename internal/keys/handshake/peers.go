package handshake

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// stage is how far an exchange has come.
type stage int

const (
	// stageDialling: no connection yet.
	stageDialling stage = iota
	// stageConnected: there is a connection to the peer, which may have seen this node's
	// certificate already.
	stageConnected
	// stageGreeted: the peer said HELLO, so it serves this session.
	stageGreeted
	// stageServing: the peer dialled.
	stageServing
)

// greetedGrace is how long an exchange that the peer already served may take to end when that peer
// dials anew: it is done there, or the peer was restarted.
const greetedGrace = 2 * time.Second

// activity is the one exchange that runs with a peer.
type activity struct {
	stage  stage
	cancel context.CancelCauseFunc
	ended  chan struct{}
}

// peers sees to it that a node runs one exchange with a peer at a time, and decides who wins when
// both dial.
type peers struct {
	self string

	mu      sync.Mutex
	running map[string]*activity
}

func newPeers(self string) *peers { return &peers{self: self, running: map[string]*activity{}} }

// dial begins an exchange that this node dials.
func (p *peers) dial(peer string, cancel context.CancelCauseFunc) (*activity, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[peer] != nil {
		return nil, ErrBusy
	}
	return p.begin(peer, &activity{stage: stageDialling, cancel: cancel}), nil
}

func (p *peers) begin(peer string, a *activity) *activity {
	a.ended = make(chan struct{})
	p.running[peer] = a
	return a
}

// reach notes how far a dialled exchange has come. It fails if the exchange had to give way
// meanwhile.
func (p *peers) reach(ctx context.Context, a *activity, s stage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.stage = s
	return nil
}

// serve begins an exchange that the peer dialled, after its certificate was checked. When this node
// dials that peer too, the smaller name wins, but only once its connection stands: a node that
// cannot be reached would else keep its peers from reaching others. The larger gives way only to a
// session of the smaller that stands, so never both give way.
func (p *peers) serve(ctx context.Context, peer string) (*activity, error) {
	grace := time.NewTimer(greetedGrace)
	defer grace.Stop()
	for {
		p.mu.Lock()
		other := p.running[peer]
		if other == nil {
			defer p.mu.Unlock()
			return p.begin(peer, &activity{stage: stageServing, cancel: func(error) {}}), nil
		}
		if other.stage == stageServing || (p.self < peer && other.stage == stageConnected) {
			p.mu.Unlock()
			return nil, ErrBusy
		}
		if other.stage != stageGreeted {
			other.cancel(fmt.Errorf("%w: %s dialled too", ErrBusy, peer))
		}
		p.mu.Unlock()
		select {
		case <-other.ended:
		case <-grace.C:
			other.cancel(fmt.Errorf("%w: %s dialled anew", ErrBusy, peer))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// end ends an exchange.
func (p *peers) end(peer string, a *activity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[peer] == a {
		delete(p.running, peer)
	}
	close(a.ended)
}
