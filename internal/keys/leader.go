package keys

import (
	"context"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
)

// Leader is the office of the one node that makes epochs by age and removes old ones.
// Two at once do no harm, since an epoch is made exclusively; none at all means that no
// new epoch comes by age.
type Leader interface {
	// Campaign blocks until this node is elected or ctx ends. It tells what hinders it
	// from trying, nil for nothing.
	Campaign(ctx context.Context, trouble func(error)) error
	// IsLeader says whether this node is elected still.
	IsLeader() bool
	// Resign gives the office up.
	Resign()
	// Holder is the node elected last, as far as that is known.
	Holder() string
}

const (
	// leaderCheck is how often the leader looks whether it still is.
	leaderCheck = 2 * time.Second
	// resignAfter is how often in a row a leader may fail to make an epoch that is due.
	resignAfter = 3
	// resignPause is how long it then leaves the office to others.
	resignPause = 30 * time.Second
)

// lead keeps this node in the race for leader as long as ctx lives.
func (m *Manager) lead(ctx context.Context) {
	defer m.opt.Leader.Resign()
	for ctx.Err() == nil {
		if err := m.opt.Leader.Campaign(ctx, func(err error) { m.problem("leader", err) }); err != nil {
			if ctx.Err() == nil {
				m.problem("leader", err)
				clock.Sleep(ctx, m.clock, leaderCheck)
			}
			continue
		}
		m.elected(true)
		for m.opt.Leader.IsLeader() && !m.tired() && clock.Sleep(ctx, m.clock, leaderCheck) {
		}
		m.elected(false)
		if ctx.Err() == nil && m.opt.Leader.IsLeader() {
			m.opt.Leader.Resign()
			clock.Sleep(ctx, m.clock, resignPause)
		}
	}
}

// tired: epochs are due, and this node cannot make them. Another may.
func (m *Manager) tired() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failures >= resignAfter
}

func (m *Manager) elected(yes bool) {
	m.mu.Lock()
	m.leader, m.failures = yes, 0
	m.mu.Unlock()
	if yes {
		m.journal.Add(audit.Record{Event: audit.EventElected})
	} else {
		m.journal.Add(audit.Record{Event: audit.EventResigned})
	}
	m.poke()
}
