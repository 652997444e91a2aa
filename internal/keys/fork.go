package keys

import (
	"context"

	"weft.dev/weft/internal/keys/audit"
)

// Forked says that this virtual machine was resumed from a snapshot or copied, and that the
// datapath has destroyed the keys of before. Peers are met anew at once; exchanges under way,
// dialled and served, are given up, since their connections are of before, too.
func (m *Manager) Forked() {
	m.peers.abortDialled()
	m.server.Abort()
	m.load()
	m.journal.Add(audit.Record{Event: audit.EventVMFork,
		Detail: "keys of before were destroyed, every peer is met anew"})
	m.mu.Lock()
	m.vmForks++
	m.mu.Unlock()
	m.peers.forked()
}

// abortDialled gives up the exchanges under way that this node dialled.
func (p *peers) abortDialled() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.abort != nil {
		p.abort()
		p.abort = nil
	}
}

// abortable is a context that abortDialled ends.
func (p *peers) abortable(ctx context.Context) (context.Context, context.CancelFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.abort == nil {
		p.alive, p.abort = context.WithCancel(context.Background())
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(p.alive, cancel)
	return ctx, func() { stop(); cancel() }
}
