package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"weft.dev/weft/internal/store"
)

const (
	// leaseName is the Lease of the leader of epochs, in the agents' namespace.
	leaseName = "weft-epochs"
	// leaseTTL is how long a leader that says nothing still is the leader.
	leaseTTL = 15 * time.Second
	// microTime is how a Lease writes times: metav1.MicroTime's layout.
	microTime = "2006-01-02T15:04:05.000000Z07:00"
)

var leases = &resource{GroupVersionResource: schema.GroupVersionResource{
	Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, apiKind: "Lease",
	namespaced: true}

// Leader is the leadership of the one agent that makes and removes epochs. It holds a Lease. When
// that ends is judged by how long a candidate has seen it unchanged, on its own clock, as
// client-go's leader election does: clocks may differ. Two leaders at once would do no harm: an
// epoch is made exclusively.
type Leader struct {
	kube *Kube
	node string

	mu    sync.Mutex
	until time.Time // when this node's Lease ends unless it is renewed; zero: not elected
	stop  context.CancelFunc
	// seen is the Lease's version when it was seen first, at since.
	seen  string
	since time.Time
}

// Leader is the candidacy of a node.
func (k *Kube) Leader(node string) *Leader { return &Leader{kube: k, node: node} }

// Campaign blocks until this node is the leader or ctx ends. What keeps it from even trying is told
// to trouble.
func (l *Leader) Campaign(ctx context.Context, trouble func(error)) error {
	return store.Campaign(ctx, l.try, trouble)
}

// try takes the Lease if nobody has it.
func (l *Leader) try(ctx context.Context) (bool, error) {
	if l.IsLeader() {
		return true, nil
	}
	l.halt()
	won, asked, err := l.take(ctx)
	if err != nil {
		return false, fmt.Errorf("become leader: %w", err)
	}
	if won {
		l.hold(asked)
	}
	return won, nil
}

// take writes this node's name into the Lease, unless another holds it. asked is from when on it
// holds.
func (l *Leader) take(ctx context.Context) (won bool, asked time.Time, err error) {
	if err := l.kube.awayFrom(epochs); err != nil {
		return false, asked, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	there, err := l.kube.get(ctx, leases, l.kube.namespace, leaseName)
	if err != nil {
		return false, asked, err
	}
	if there != nil && !l.ended(there) {
		return false, asked, nil
	}
	asked = time.Now()
	if there == nil {
		err = l.kube.create(ctx, leases, l.lease(l.node, asked))
	} else {
		err = l.kube.update(ctx, leases, l.lease(l.node, asked), there)
	}
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrChanged) {
		return false, asked, nil // another was faster
	}
	if err == nil {
		l.kube.setHolder(l.node)
	}
	return err == nil, asked, err
}

// ended says whether a Lease may be taken: it is this node's or nobody's, or was not renewed for as
// long as it lasts.
func (l *Leader) ended(lease *object) bool {
	holder, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
	l.kube.setHolder(holder)
	l.mu.Lock()
	defer l.mu.Unlock()
	if version := lease.GetResourceVersion(); version != l.seen {
		l.seen, l.since = version, time.Now()
	}
	return holder == "" || holder == l.node || time.Since(l.since) > leaseTTL
}

func (l *Leader) lease(holder string, now time.Time) *object {
	out := &object{Object: map[string]any{"spec": map[string]any{
		"holderIdentity": holder, "leaseDurationSeconds": int64(leaseTTL / time.Second),
		"renewTime": now.UTC().Format(microTime)}}}
	out.SetAPIVersion(leases.GroupVersion().String())
	out.SetKind(leases.apiKind)
	out.SetNamespace(l.kube.namespace)
	out.SetName(leaseName)
	return out
}

// hold renews the Lease until Resign.
func (l *Leader) hold(asked time.Time) {
	ctx, stop := context.WithCancel(l.kube.ctx)
	l.mu.Lock()
	l.until, l.stop = asked.Add(leaseTTL), stop
	l.mu.Unlock()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(leaseTTL / 3):
			}
			l.renew(ctx)
		}
	}()
}

// renew writes the Lease again. If another has it, this node is the leader no more; without an
// answer it is for as long as its own lasts.
func (l *Leader) renew(ctx context.Context) {
	won, asked, err := l.take(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ctx.Err() != nil || err != nil:
	case won:
		l.until = asked.Add(leaseTTL)
	default:
		l.until = time.Time{}
	}
}

// IsLeader says whether this node still is: it knows that its Lease lasts.
func (l *Leader) IsLeader() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.until)
}

// halt ends the renewing.
func (l *Leader) halt() (was bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was = time.Now().Before(l.until)
	if l.stop != nil {
		l.stop()
	}
	l.until, l.stop = time.Time{}, nil
	return was
}

// Resign gives the leadership up, for another node to have it.
func (l *Leader) Resign() {
	if !l.halt() {
		return
	}
	ctx, cancel, err := l.kube.call(epochs)
	if err != nil {
		return // it ends by itself
	}
	defer cancel()
	there, err := l.kube.get(ctx, leases, l.kube.namespace, leaseName)
	if err != nil || there == nil {
		return
	}
	if holder, _, _ := unstructured.NestedString(there.Object, "spec",
		"holderIdentity"); holder == l.node {
		_ = l.kube.update(ctx, leases, l.lease("", time.Now()), there) // else it ends by itself
	}
}

// Holder is the node that is the leader, "" when that is not known.
func (l *Leader) Holder() string {
	l.kube.mu.Lock()
	defer l.kube.mu.Unlock()
	return l.kube.holder
}

func (k *Kube) setHolder(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.holder = node
}
