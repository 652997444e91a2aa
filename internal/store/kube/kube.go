// Package kube is a store.Store on Kubernetes' API.
//
// Nodes, Pods, Namespaces and policies are Kubernetes' own objects, translated (translate.go);
// Endpoints, Identities, Epochs and EncryptionPolicies are custom resources, whose definitions are
// in packaging/kubernetes/crds.yaml.
//
// # What is read
//
// A Kube has a mirror of each resource, at one resource version. A watch keeps it current. Watches
// are plain ones of client-go's dynamic client and not its reflectors: a reflector resumes at its
// resource version without telling, which is another state after etcd was restored behind the API
// server. Here each session begins with a look whether the mirror's version still is what it was
// (history.go). If it is not, everything is listed anew, and nothing is gone for not being listed.
// Resource versions of one resource are numbers that grow:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store"
)

// Options say where the API server is, and who asks.
type Options struct {
	// Kubeconfig is the path of a kubeconfig file; "" is the service account of the pod that this
	// process is in.
	Kubeconfig string
	// Node is the node whose endpoints are put and deleted; "" for none.
	Node string
	// Log gets what happens before anybody watches. Optional.
	Log *slog.Logger
}

const (
	// callTimeout bounds one question to the API server.
	callTimeout = 10 * time.Second
	// retryMin and retryMax bound the pauses of a watch whose API server is away.
	retryMin, retryMax = 100 * time.Millisecond, 5 * time.Second
	// unservedPause is how often an optional resource is looked for that is not served.
	unservedPause = time.Minute
	// pageSize is how many objects one answer of a listing has at most.
	pageSize = 500
	// watchSeconds is how long a watch lasts at least, in seconds; at most twice that.
	watchSeconds = 300
	// queriesPerSecond and burst bound what this client asks. The server has its own bounds (API
	// priority and fairness).
	queriesPerSecond, burst = 50, 100
)

// namespaceFile has the namespace of the pod that this process is in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Kube is the objects of a Kubernetes cluster. It is safe for concurrent use.
type Kube struct {
	opt       Options
	client    dynamic.Interface
	host      string
	namespace string // where the Lease of the leader of epochs is
	log       *slog.Logger
	ctx       context.Context // ends with Close
	close     context.CancelFunc

	// asking is held while other mirrors are asked about the API server's history. It is taken
	// after a mirror's own, and before mu.
	asking sync.Mutex

	mu      sync.Mutex // guards what follows
	history store.History
	mirrors []*mirror // one for each of resources
	// restores is how often the API server was found to have gone back, by whichever mirror.
	restores int
	// ended is another number, from 1 on, each time a session of a watch has ended, or somebody
	// wants to know what holds at that moment: what was found out before may not hold any more.
	ended int
	// nodesChanged says that Nodes have come or gone in what is about to be handed on.
	nodesChanged bool
	// away is why a resource cannot be read, by resource, as far as a watch knows.
	away      map[*resource]error
	awaySince time.Time
	holder    string // the leader of epochs, as far as this node has seen
}

var (
	_ store.Store         = (*Kube)(nil)
	_ store.EpochStore    = (*Kube)(nil)
	_ store.IdentityStore = (*Kube)(nil)
	_ store.Editor        = (*Kube)(nil)
)

// Open makes a client. It does not wait for the API server: the error is for options and files.
func Open(opt Options) (*Kube, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	config, namespace, err := clientConfig(opt.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("store.kubernetes: %w", err)
	}
	config.QPS, config.Burst = queriesPerSecond, burst
	config.UserAgent = "weft-agent"
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("store.kubernetes: %w", err)
	}
	k := &Kube{opt: opt, client: client, host: config.Host, namespace: namespace, log: opt.Log,
		away: map[*resource]error{}, ended: 1}
	k.ctx, k.close = context.WithCancel(context.Background())
	unread := map[string]*store.Source{}
	for _, r := range resources {
		// What was in use before the agent started stays until its own resource was listed.
		unread[r.name()] = aboutAll(r, "was not listed yet")
		k.mirrors = append(k.mirrors, &mirror{resource: r, entries: map[string]*entry{},
			anew: make(chan struct{}, 1)})
	}
	k.history.Update(unread)
	return k, nil
}

// clientConfig is how the API server is reached, and the namespace that belongs to it.
func clientConfig(kubeconfig string) (*rest.Config, string, error) {
	if kubeconfig == "" {
		return inCluster()
	}
	from := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, &clientcmd.ConfigOverrides{})
	config, err := from.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w", err)
	}
	namespace, _, err := from.Namespace()
	return config, namespace, err
}

// Close ends the watches, and what waits for an answer.
func (k *Kube) Close() error {
	k.close()
	return nil
}

// Seed names nodes that were in use before this agent started: of nodes that collide, they come
// first.
func (k *Kube) Seed(nodes []*v1alpha1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.history.Seed(nodes)
}

// SeedPolicies names policies that were in use before this agent started: see store.History.
func (k *Kube) SeedPolicies(list []*policy.Policy, keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.history.SeedPolicies(list, keys)
}

// SeedObjects names objects of other kinds that were in use then.
func (k *Kube) SeedObjects(list []store.Declared) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.history.SeedObjects(list)
}

// InUse are the objects of some kinds that are in use, and where they came from.
func (k *Kube) InUse(kinds ...string) []store.Declared {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.history.InUse(kinds...)
}

// Away is why the objects cannot be read and since when, nil while they can, or nobody watches.
func (k *Kube) Away() error { return k.awayFrom(resources...) }

// awayFrom is the same of some resources alone.
func (k *Kube) awayFrom(some ...*resource) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range some {
		if err := k.away[r]; err != nil {
			return fmt.Errorf("the API of Kubernetes cannot be read since %s: %w",
				k.awaySince.UTC().Format(time.RFC3339), err)
		}
	}
	return nil
}

// setAway notes how the watch of a resource fares, and says whether that is new.
func (k *Kube) setAway(r *resource, err error) (changed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.away[r]
	if len(k.away) == 0 && err != nil {
		k.awaySince = time.Now()
	}
	if err == nil {
		delete(k.away, r)
		return before != nil
	}
	k.away[r] = err
	return before == nil || before.Error() != err.Error()
}

// Snapshot implements store.Store.
func (k *Kube) Snapshot() (*store.Snapshot, error) {
	if err := k.Away(); err != nil {
		return nil, err
	}
	for _, m := range k.mirrors {
		if err := k.refresh(m); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.history.Snapshot(), nil
}

// refresh brings a mirror to what the API server has at this moment or after.
func (k *Kube) refresh(m *mirror) error {
	err := k.renew(k.ctx, m)
	if err != nil && m.optional && notServed(err) {
		former := k.formerly(k.ctx, m.resource)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.unserved(m, former)
		return nil
	}
	return err
}

// outdate has mirrors checked again that were found to be of the API server's history.
func (k *Kube) outdate() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended++
}

// call bounds a question to the API server about a resource. While a watch knows that it cannot be
// read, nothing waits for it; what is wrong with other resources is no reason.
func (k *Kube) call(r *resource) (context.Context, context.CancelFunc, error) {
	if err := k.awayFrom(r); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(k.ctx, callTimeout)
	return ctx, cancel, nil
}
