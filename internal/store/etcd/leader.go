package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/internal/store"
)

// leaderTTL is how long a leader that says nothing still is the leader, in seconds.
const leaderTTL = 15

// Leader is the leadership of the one agent that makes and removes epochs. It holds a key with a
// lease: no object of a node has one, so none goes when a node falls silent. Two leaders at once
// would do no harm: an epoch is made exclusively.
type Leader struct {
	etcd *Etcd
	node string

	mu    sync.Mutex
	lease clientv3.LeaseID // 0: not elected
	until time.Time        // when the lease ends unless it is renewed
	stop  context.CancelFunc
}

// Leader is the candidacy of a node.
func (e *Etcd) Leader(node string) *Leader { return &Leader{etcd: e, node: node} }

// Campaign blocks until this node is the leader or ctx ends. What keeps it from even trying is told
// to trouble.
func (l *Leader) Campaign(ctx context.Context, trouble func(error)) error {
	return store.Campaign(ctx, l.try, trouble)
}

// try takes the key if nobody has it.
func (l *Leader) try(ctx context.Context) (bool, error) {
	if l.IsLeader() {
		return true, nil
	}
	l.Resign()
	e := l.etcd
	ctx, cancel, err := e.call(ctx)
	if err != nil {
		return false, fmt.Errorf("become leader: %w", err)
	}
	defer cancel()
	if held, err := e.get(ctx, e.leaderKey()); err != nil || held != nil &&
		string(held.Value) != l.node {
		return false, err
	}
	asked := time.Now()
	lease, err := e.client.Grant(ctx, leaderTTL)
	if err != nil {
		return false, fmt.Errorf("become leader: %w", e.explain(err))
	}
	answer, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(e.leaderKey()),
		"=", 0)).
		Then(clientv3.OpPut(e.leaderKey(), l.node, clientv3.WithLease(lease.ID))).Commit()
	if err != nil || !answer.Succeeded {
		_, _ = e.client.Revoke(ctx, lease.ID) // else it ends by itself
		return false, e.explain(err)
	}
	l.hold(lease.ID, asked)
	return true, nil
}

// hold renews a lease until Resign.
func (l *Leader) hold(lease clientv3.LeaseID, asked time.Time) {
	ctx, stop := context.WithCancel(context.Background())
	l.mu.Lock()
	l.lease, l.until, l.stop = lease, asked.Add(leaderTTL*time.Second), stop
	l.mu.Unlock()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(leaderTTL * time.Second / 3):
			}
			l.renew(ctx, lease)
		}
	}()
}

func (l *Leader) renew(ctx context.Context, lease clientv3.LeaseID) {
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := l.etcd.client.KeepAliveOnce(ctx, lease)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.lease != lease:
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		l.until = time.Time{}
	case err != nil: // it lives on for what it has
	default:
		l.until = asked.Add(time.Duration(answer.TTL) * time.Second)
	}
}

// IsLeader says whether this node still is: it knows that its lease lives.
func (l *Leader) IsLeader() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lease != 0 && time.Now().Before(l.until)
}

// Resign gives the leadership up, for another node to have it.
func (l *Leader) Resign() {
	l.mu.Lock()
	lease, stop := l.lease, l.stop
	l.lease, l.stop = 0, nil
	l.mu.Unlock()
	if lease == 0 {
		return
	}
	stop()
	if ctx, cancel, err := l.etcd.call(context.Background()); err == nil {
		defer cancel()
		_, _ = l.etcd.client.Revoke(ctx, lease) // else it ends by itself
	}
}

// Holder is the node that is the leader, "" when that is not known.
func (l *Leader) Holder() string {
	e := l.etcd
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.mirror.entries[e.leaderKey()]; x != nil {
		return string(x.own)
	}
	return ""
}
