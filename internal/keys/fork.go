package keys

import (
	"context"

	"weft.dev/weft/internal/keys/audit"
)

// Forked says that this virtual machine was resumed from a snapshot or copied, and that the datapath has destroyed the
// keys of before. Peers are met anew at once; exchanges under way, dialled and served, are given up, since their
// connections are of before, too.
func (m *Manager) Forked() {
	m.mu.Lock()
	if m.abort != nil {
		m.abort()
		m.abort = nil
	}
	m.mu.Unlock()
	m.server.Abort()
	m.loadKernel()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Boot()
	m.counters.VMForks++
	m.journal.Add(audit.Record{Event: audit.EventVMFork, Detail: "keys of before were destroyed, every peer is met anew"})
	for _, p := range m.peers {
		if !p.gone {
			p.confirmed, p.failures, p.nextTry, p.kicked = 0, 0, now, true
		}
	}
	m.pokeLocked()
}

// abortable is a context that Forked ends.
func (m *Manager) abortable(ctx context.Context) (context.Context, context.CancelFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.abort == nil {
		m.alive, m.abort = context.WithCancel(context.Background())
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(m.alive, cancel)
	return ctx, func() { stop(); cancel() }
}
