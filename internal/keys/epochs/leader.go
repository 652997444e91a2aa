package epochs

import (
	"context"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
)

// Leader is the leadership of one node, which makes epochs by age and removes old ones.
// Two at once do no harm, since an epoch is made exclusively; none at all means that no
// new epoch comes by age.
type Leader interface {
	// Campaign blocks until this node is elected or ctx ends. It tells what hinders it
	// from trying, nil for nothing.
	Campaign(ctx context.Context, trouble func(error)) error
	// IsLeader says whether this node is elected still.
	IsLeader() bool
	// Resign gives the leadership up.
	Resign()
	// Holder is the node elected last, as far as that is known.
	Holder() string
}

const (
	// leaderCheck is how often the leader looks whether it still is.
	leaderCheck = 2 * time.Second
	// resignAfter is how often in a row a leader may fail to make an epoch that is due.
	resignAfter = 3
	// resignPause is how long it then leaves the leadership to others.
	resignPause = 30 * time.Second
)

// Lead keeps this node in the race for leader as long as ctx lives.
func (k *Keeper) Lead(ctx context.Context) {
	defer k.opt.Leader.Resign()
	for ctx.Err() == nil {
		if err := k.opt.Leader.Campaign(ctx,
			func(err error) { k.opt.Problem("leader", err) }); err != nil {
			if ctx.Err() == nil {
				k.opt.Problem("leader", err)
				clock.Sleep(ctx, k.clock, leaderCheck)
			}
			continue
		}
		k.elected(true)
		for k.opt.Leader.IsLeader() && !k.tired() && clock.Sleep(ctx, k.clock, leaderCheck) {
		}
		k.elected(false)
		if ctx.Err() == nil && k.opt.Leader.IsLeader() {
			k.opt.Leader.Resign()
			clock.Sleep(ctx, k.clock, resignPause)
		}
	}
}

// tired: epochs are due, and this node cannot make them. Another may.
func (k *Keeper) tired() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failures >= resignAfter
}

func (k *Keeper) elected(yes bool) {
	k.mu.Lock()
	k.leader, k.failures = yes, 0
	k.mu.Unlock()
	if yes {
		k.opt.Journal.Add(audit.Record{Event: audit.EventElected})
	} else {
		k.opt.Journal.Add(audit.Record{Event: audit.EventResigned})
	}
	k.opt.Signal.Poke()
}
