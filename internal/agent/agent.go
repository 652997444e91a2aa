// Package agent wires a node together: what starts what, in which order, and what
// stays when it ends. The work itself is done by the packages that it calls.
//
// The agent is never on the packet path. When it stops, for whatever reason, every
// pinned map and link stays and traffic goes on; Cleanup is what takes them away.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/logfile"
	"weft.dev/weft/internal/masquerade"
	"weft.dev/weft/internal/pathprobe"
	"weft.dev/weft/internal/ranges"
	"weft.dev/weft/internal/sdnotify"
	"weft.dev/weft/internal/sealer/supervisor"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
)

// Options are what Run needs besides the configuration.
type Options struct {
	Log     *slog.Logger
	Version string
	// LogTail remembers the last lines of Log for sysdump. Optional.
	LogTail *logfile.Tail
	// Notify tells the service manager, in lines of sd_notify(3). Optional.
	Notify func(lines string) error
}

// seams are what the tests replace.
type seams struct {
	preflight     func(*config.Config, *slog.Logger) error
	openStore     func(*config.Config, *slog.Logger) (store.Store, error)
	findLinks     func(*config.Config, *v1alpha1.Node) (startup.Links, error)
	openDatapath  func(*config.Config, *v1alpha1.Node, startup.Links, *slog.Logger) (Datapath, error)
	openEndpoints func(endpoint.Options) (Endpoints, http.Handler, error)
	openKeys      func(context.Context, keyParts) (*keyring, error)
	openProber    func(pathprobe.Options) (Prober, error)
	outward       func(uplinks []string) ([]string, error)
	masquerade    func(instance string, want *masquerade.Options) error
	masked        func(*masquerade.Options) (bool, error)
}

func realSeams() seams {
	return seams{
		preflight: startup.Preflight,
		openStore: openStore,
		findLinks: func(cfg *config.Config, node *v1alpha1.Node) (startup.Links, error) {
			return startup.FindLinks(cfg, node.Spec.Addresses)
		},
		openDatapath:  openDatapath,
		openEndpoints: openEndpoints,
		openKeys:      openKeys,
		openProber:    func(opt pathprobe.Options) (Prober, error) { return pathprobe.Listen(opt) },
		outward:       outwardInterfaces,
		masquerade:    setMasquerade,
		masked:        masquerade.Intact,
	}
}

// Agent is one node's agent.
type Agent struct {
	cfg     *config.Config
	opt     Options
	seams   seams
	log     *slog.Logger
	started time.Time

	store store.Store
	hub   *flows.Hub
	index atomic.Pointer[index]
	// seeing guards the making of the index, and own: what this node runs with, nil before it does.
	seeing sync.Mutex
	own    *v1alpha1.Node
	// unlearned says that the memory could not be written down the last time. Guarded by seeing.
	unlearned bool
	// memory is what is known of the cluster's ranges, nil without encryption.
	memory   *ranges.Memory
	changed  chan struct{}
	cni      cniDoor
	node     *node
	nodeLock sync.RWMutex
	// keys is nil while there are none to be had.
	keys atomic.Pointer[keyring]
	// sealer is nil where the engine has none.
	sealer atomic.Pointer[supervisor.Supervisor]
	// synced are the peers that the datapath knows.
	synced atomic.Pointer[[]keys.Peer]
	// identities of each other node's pods, as the datapath was last told.
	identities atomic.Pointer[map[string][]uint32]
	paths      paths
	// remembered is what rememberPolicies has written in this run.
	remembered []byte
	// labelled is what rememberLabels has written in this run, nil for nothing.
	labelled []store.Declared
	// epochSince is when reconcile first saw an epoch that this node can read.
	epochSince time.Time

	stateLock sync.Mutex
	waiting   string
	ready     bool
	owed      work
	problems  map[string]string
	noted     []datapath.Note
}

// node is what exists once the datapath is up.
type node struct {
	object   *v1alpha1.Node
	links    startup.Links
	mtu      int
	dp       Datapath
	manager  Endpoints
	policies *policies
	// masked is what the host's masquerading was last set to, if it was (maskedOnce). Guarded by
	// maskLock.
	maskLock   sync.Mutex
	masked     *masquerade.Options
	maskedOnce bool
}

// Run runs an agent until ctx ends or something without which it cannot go on fails.
func Run(ctx context.Context, cfg *config.Config, opt Options) error {
	return run(ctx, cfg, opt, realSeams())
}

func run(ctx context.Context, cfg *config.Config, opt Options, seams seams) error {
	agent := newAgent(cfg, opt, seams)
	if err := seams.preflight(cfg, agent.log); err != nil {
		return err
	}
	held, err := startup.TakeLock(cfg.RunDir())
	if err != nil {
		return err
	}
	defer held.Release()
	return agent.serve(ctx)
}

func newAgent(cfg *config.Config, opt Options, seams seams) *Agent {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Notify == nil {
		opt.Notify = func(string) error { return nil }
	}
	agent := &Agent{
		cfg: cfg, opt: opt, seams: seams, log: opt.Log, started: time.Now(),
		hub: flows.NewHub(0), changed: make(chan struct{}, 1),
		waiting: "starting", problems: map[string]string{},
	}
	agent.identities.Store(&map[string][]uint32{})
	agent.cni.waiting = func() string { return agent.readiness().Waiting }
	agent.index.Store(newIndex(store.NewSnapshot()))
	return agent
}

// serve opens the store and the admin socket and brings the node up behind it, so
// that `weft status` can tell what the agent waits for.
func (a *Agent) serve(ctx context.Context) error {
	var err error
	if a.store, err = a.seams.openStore(a.cfg, a.log); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	a.problem("store's place", storeShared(a.cfg.Store.Dir, a.store))
	a.openMemory()
	if err := errors.Join(a.recallPolicies(), a.recallLabels()); err != nil {
		return err
	}
	if snapshot, err := a.store.Snapshot(); err == nil {
		a.see(snapshot)
	}
	server, err := admin.Listen(a.cfg.Socket(), &backend{a}, &a.cni, a.log)
	if err != nil {
		return err
	}
	defer server.Close()
	a.log.Info("agent started", "node", a.cfg.Node, "instance", a.cfg.Instance, "version",
		a.opt.Version, "pid", os.Getpid(), "socket", a.cfg.Socket())

	group, ctx := errgroup.WithContext(ctx)
	group.Go(server.Serve)
	// Started, not ready for pods: what it waits for, whoever started it must be able to ask.
	a.tell(sdnotify.Ready)
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error { a.watchStore(ctx); return nil })
	group.Go(func() error { a.serveMetrics(ctx); return nil })
	group.Go(func() error { a.writeFlowLog(ctx); return nil })
	group.Go(func() error { return a.operate(ctx) })
	err = group.Wait()
	a.tell(sdnotify.Stopping)
	if running := a.running(); running != nil {
		// Not before the last request of the CNI plugin has been answered.
		running.dp.Close()
	}
	if c, ok := a.store.(io.Closer); ok {
		c.Close()
	}
	a.log.Info("agent stopped: pins and links stay, traffic goes on")
	return err
}

// operate brings the node up and keeps it in step with the store.
func (a *Agent) operate(ctx context.Context) error {
	object, links, ok := a.awaitNode(ctx)
	if !ok {
		return nil
	}
	a.runWith(object)
	running, err := a.bringUp(ctx, object, links)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { a.keep(ctx, "datapath", running.dp.Run) })
	background.Go(func() { a.keep(ctx, "flow events", a.consumeEvents) })
	background.Go(func() { a.watchHost(ctx, running) })
	if a.cfg.Encryption.On() {
		background.Go(func() { a.runKeys(ctx, running) })
		background.Go(func() { a.watchPaths(ctx, running) })
		background.Go(func() { a.runSealer(ctx, running) })
	}
	a.reconcile(ctx, running)
	return nil
}

// bringUp opens the datapath and gives every recorded endpoint back to it.
func (a *Agent) bringUp(ctx context.Context, object *v1alpha1.Node,
	links startup.Links) (*node, error) {
	mtu, err := PodMTU(a.cfg, links.MTU, object, a.index.Load().snapshot)
	if err != nil {
		return nil, err
	}
	a.wait("the datapath to load")
	dp, err := a.seams.openDatapath(a.cfg, object, links, a.log)
	if err != nil {
		return nil, fmt.Errorf("open datapath: %w", err)
	}
	a.adopt(dp)
	running := &node{object: object, links: links, mtu: mtu, dp: dp}
	door, err := a.openEndpoints(running)
	if err == nil {
		running.policies, err = newPolicies(dp, a.policyOptions(),
			slices.Concat(a.cfg.ClusterCIDRs, a.cfg.IPAM.Ranges))
	}
	if err != nil {
		dp.Close()
		return nil, err
	}
	// Before any pod can send: an address that is not known as another node's pod would leave in
	// cleartext.
	a.wait("the first synchronisation of nodes")
	if err := a.syncNodes(ctx, running, a.index.Load()); err != nil {
		a.log.Warn("peers are not all in order yet, will try again", "err", err)
	}
	a.wait("the recorded endpoints to be restored")
	if err := a.enterEndpoints(running); err != nil {
		a.log.Warn("endpoints are not all entered yet, will try again", "err", err)
	}
	if err := running.manager.Restore(ctx); err != nil {
		// Those that could be restored work; Sync goes on trying the others.
		a.problem("endpoints", fmt.Errorf("restore endpoints: %w", err))
	}
	endpoints, err := running.policies.endpoints(running.manager.List())
	if err != nil {
		a.problem("policies", err) // until they are next applied
	}
	if err := dp.Prune(endpoints); err != nil {
		dp.Close()
		return nil, fmt.Errorf("remove stale endpoints from the datapath: %w", err)
	}
	a.nodeLock.Lock()
	a.node = running
	a.nodeLock.Unlock()
	a.cni.open(door)
	a.wait("the first synchronisation of nodes")
	return running, nil
}

// enterEndpoints enters every endpoint with its policy sets, before the first has this run's hooks:
// who is not known would be nobody's pod.
func (a *Agent) enterEndpoints(n *node) error {
	failed := n.policies.begin(a.index.Load(), n.manager.List(), a.cfg.Node)
	endpoints, err := n.policies.endpoints(n.manager.List())
	failed = errors.Join(failed, err)
	if endpoints == nil && err != nil {
		return failed
	}
	return errors.Join(failed, n.dp.EnterEndpoints(endpoints))
}

// openEndpoints gives the node its manager and returns the CNI plugin's way to it.
func (a *Agent) openEndpoints(n *node) (door http.Handler, err error) {
	n.manager, door, err = a.seams.openEndpoints(endpoint.Options{
		StateDir: a.cfg.StateDir(), NodeName: a.cfg.Node, Ranges: podRanges(a.cfg, n.object),
		MTU:       n.mtu,
		HostAddrs: n.links.Addrs, Datapath: n.dp, Directory: a.store,
		PodSpec: a.podSpec, Identity: a.identityOf, Log: a.log,
		Policies: endpointPolicies{a, n},
	})
	if err != nil {
		return nil, fmt.Errorf("open endpoint state: %w", err)
	}
	return door, nil
}

// podSpec finds a declared pod. The watched snapshot lags behind the directory by its debounce, and
// a pod is often declared just before it is added: what is not in it is looked for in the
// directory, and so is one of another UID, which was there before it. That it cannot be read is no
// word on who the pod is.
func (a *Agent) podSpec(key, uid string) (*v1alpha1.Pod, error) {
	if pod := a.index.Load().snapshot.Pods[key]; pod != nil && isPod(pod, uid) {
		return pod, nil
	}
	pod, err := a.freshPod(key)
	if err != nil || pod == nil {
		return nil, err
	}
	if !isPod(pod, uid) {
		return nil, fmt.Errorf("pod %s has UID %s among the objects, and %s for the runtime: another of its name",
			key, pod.Spec.UID, uid)
	}
	return pod, nil
}

// freshPod is a pod as the store has it at this moment, nil for none.
func (a *Agent) freshPod(key string) (*v1alpha1.Pod, error) {
	if single, ok := a.store.(interface {
		Pod(key string) (*v1alpha1.Pod, error)
	}); ok {
		return single.Pod(key)
	}
	fresh, err := a.store.Snapshot()
	if err != nil {
		return nil, err
	}
	return fresh.Pods[key], nil
}

// isPod says whether a pod is the one of a UID, where both have one.
func isPod(pod *v1alpha1.Pod, uid string) bool {
	return uid == "" || pod.Spec.UID == "" || pod.Spec.UID == uid
}

// running is the node, nil while it is not up.
func (a *Agent) running() *node {
	a.nodeLock.RLock()
	defer a.nodeLock.RUnlock()
	return a.node
}
