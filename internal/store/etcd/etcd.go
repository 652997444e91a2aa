// Package etcd is a store.Store on an etcd cluster, for several hosts.
//
// Objects are values under PREFIX/KIND/[NAMESPACE/]NAME, endpoints under
// PREFIX/endpoint/NODE/NAMESPACE/NAME, each value one document of the YAML that a directory takes.
// etcd's own permissions therefore can hold each node to its own endpoints.
//
// # What is read
//
// An Etcd has a mirror of all keys under its prefix, at one revision. A watch keeps it current;
// what else reads asks etcd for what has changed since, so no answer is older than the question.
// While etcd is away the mirror stays as it is. A new connection goes on at the mirror's revision,
// after a look whether that revision still is what it was: if etcd was restored to an older state,
// all is listed again (see mirror.go).
package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store"
)

// Options say where etcd is, and who asks.
type Options struct {
	// Endpoints are URLs: https://HOST:PORT, http://HOST:PORT or unix:///PATH.
	Endpoints []string
	// Files are for https.
	Files TLSFiles
	// Prefix is where the objects are, such as /weft.
	Prefix string
	// Node is the node whose endpoints are put and deleted; "" for none.
	Node string
	// Log gets what happens before anybody watches. Optional.
	Log *slog.Logger
}

const (
	// callTimeout bounds one question to etcd. An election takes about a second.
	callTimeout = 3 * time.Second
	// reasonTimeout bounds the question what keeps etcd from being reached.
	reasonTimeout = time.Second
	// retryMin and retryMax bound the pauses of a watch whose etcd is away.
	retryMin, retryMax = 100 * time.Millisecond, 5 * time.Second
	// A connection that says nothing for keepaliveTime is asked whether it lives, and has
	// keepaliveTimeout to answer.
	keepaliveTime, keepaliveTimeout = 10 * time.Second, 5 * time.Second
	// pageSize is how many keys one answer of a listing has at most.
	pageSize = 2000
)

// Etcd is the objects under a prefix of an etcd cluster. It is safe for concurrent use.
type Etcd struct {
	opt     Options
	client  *clientv3.Client
	kv      etcdserverpb.KVClient
	watches etcdserverpb.WatchClient
	log     *slog.Logger

	// asking is held by who compares the mirror with etcd.
	asking chan struct{}

	mu      sync.Mutex // guards what follows
	history store.History
	mirror  mirror
	// away is why etcd cannot be reached, as far as a watch knows; nil while it can, or nobody
	// watches.
	away      error
	awaySince time.Time
}

var (
	_ store.Store         = (*Etcd)(nil)
	_ store.EpochStore    = (*Etcd)(nil)
	_ store.IdentityStore = (*Etcd)(nil)
	_ store.Editor        = (*Etcd)(nil)
)

// Open makes a client. It does not wait for etcd: the error is for options and files.
func Open(opt Options) (*Etcd, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	secured, err := opt.Files.config()
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: opt.Endpoints, TLS: secured, Logger: zap.NewNop(), DialTimeout: callTimeout,
		DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("store.etcd: %w", err)
	}
	return &Etcd{
		opt: opt, client: client, log: opt.Log, asking: make(chan struct{}, 1),
		kv:      etcdserverpb.NewKVClient(client.ActiveConnection()),
		watches: etcdserverpb.NewWatchClient(client.ActiveConnection()),
		mirror:  newMirror(),
	}, nil
}

// Close ends the connection, and what waits for it.
func (e *Etcd) Close() error { return e.client.Close() }

// Seed names nodes that were in use before this agent started: of nodes that collide, they come
// first.
func (e *Etcd) Seed(nodes []*v1alpha1.Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history.Seed(nodes)
}

// SeedPolicies names policies that were in use before this agent started: see store.History.
func (e *Etcd) SeedPolicies(list []*policy.Policy, keys []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history.SeedPolicies(list, keys)
}

// SeedObjects names others that were in use then.
func (e *Etcd) SeedObjects(list []store.Declared) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.history.SeedObjects(list)
}

// InUse are the objects of some kinds that are in use, and where they came from.
func (e *Etcd) InUse(kinds ...string) []store.Declared {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.history.InUse(kinds...)
}

// Away is why etcd cannot be reached and since when, nil while it can, or nobody watches.
func (e *Etcd) Away() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.awayLocked()
}

func (e *Etcd) awayLocked() error {
	if e.away == nil {
		return nil
	}
	return fmt.Errorf("etcd is away since %s: %w", e.awaySince.UTC().Format(time.RFC3339), e.away)
}

// setAway notes how the watch fares, and says whether that is new.
func (e *Etcd) setAway(err error) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed = (e.away == nil) != (err == nil)
	if e.away == nil && err != nil {
		e.awaySince = time.Now()
	}
	e.away = err
	return changed
}

// Snapshot implements store.Store.
func (e *Etcd) Snapshot() (*store.Snapshot, error) {
	if err := e.Away(); err != nil {
		return nil, err
	}
	if err := e.refresh(context.Background()); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.history.Snapshot(), nil
}

// call bounds a question to etcd. While a watch knows it to be away, nothing waits for it.
func (e *Etcd) call(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := e.Away(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	return ctx, cancel, nil
}

// maxAnswer is the size of the largest message that is taken, in bytes: what etcd's own client
// takes.
const maxAnswer = math.MaxInt32
