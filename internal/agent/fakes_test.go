package agent

import (
	"context"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/logfile"
	"weft.dev/weft/internal/masquerade"
	"weft.dev/weft/internal/pathprobe"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
)

// world is everything that an agent stands on, faked.
type world struct {
	network  string // the network file system that the directory is on
	mu       sync.Mutex
	watcher  sync.Mutex // held while a watcher is called
	snapshot *store.Snapshot
	changed  func(store.Delta)
	nodes    []datapath.Node
	nodesErr error
	pruned   []datapath.Endpoint
	entered  []datapath.Endpoint
	order    []string // of the first calls that bring the node up
	closed   bool
	masks    []*masquerade.Options
	restore  error
	sync     error
	events   chan datapath.FlowEvent
	linksErr error
	sealing  sealing
	// nodeProblems and inherited are what the datapath tells of them.
	nodeProblems []datapath.NodeProblem
	inherited    []datapath.Inherited
	host         host
	told         []string // the service manager
}

// host is what others do to the machine.
type host struct {
	problems, records []string
	notes             []datapath.Note
	changes           chan datapath.HostChange
	mended            [][]string // the names of each Mend
	mends             int
	unseen            error
	unmasked          bool
	uplinks           []string
}

// sealing is what encryption stands on.
type sealing struct {
	identities  map[string][]uint32
	plain       []netip.Prefix
	plainErr    error
	sas         []esp.SAStatus
	ring        *fakeRing
	ringErr     error
	certificate error
	path        func(netip.Addr) (int, error)
}

func newWorld() *world {
	return &world{
		snapshot: store.NewSnapshot(), events: make(chan datapath.FlowEvent, 8),
		host: host{changes: make(chan datapath.HostChange, 1), uplinks: []string{"wire"}},
	}
}

func nodeObject(name, addr, cidr string) *v1alpha1.Node {
	return &v1alpha1.Node{
		Metadata: v1alpha1.ObjectMeta{Name: name},
		Spec: v1alpha1.NodeSpec{Addresses: []netip.Addr{netip.MustParseAddr(addr)},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}},
	}
}

// put changes the store, as a person who edits a file does.
func (w *world) put(change func(*store.Snapshot)) {
	w.mu.Lock()
	next := store.NewSnapshot()
	for name, node := range w.snapshot.Nodes {
		next.Nodes[name] = node
	}
	for name, ep := range w.snapshot.Endpoints {
		next.Endpoints[name] = ep
	}
	change(next)
	delta := deltaOf(w.snapshot, next)
	w.snapshot = next
	changed := w.changed
	w.mu.Unlock()
	if changed != nil {
		w.deliver(changed, delta)
	}
}

// deliver calls a watcher as a store does: one change at a time.
func (w *world) deliver(changed func(store.Delta), delta store.Delta) {
	w.watcher.Lock()
	defer w.watcher.Unlock()
	changed(delta)
}

// fakeStore is the world as a store.
type fakeStore struct{ *world }

func (s fakeStore) Snapshot() (*store.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshot, nil
}
func (s fakeStore) Network() string { return s.network }
func (s fakeStore) Watch(ctx context.Context, changed func(store.Delta)) error {
	s.mu.Lock()
	s.changed = changed
	delta := deltaOf(store.NewSnapshot(), s.snapshot)
	delta.Listed = true
	s.mu.Unlock()
	s.deliver(changed, delta)
	<-ctx.Done()
	return nil
}
func (s fakeStore) PutEndpoint(*v1alpha1.Endpoint) error { return nil }
func (s fakeStore) DeleteEndpoint(string) error          { return nil }

// fakeRing is a key manager.
type fakeRing struct {
	mu      sync.Mutex
	peers   []keys.Peer
	rekeyed []string
	status  keys.Status
	changes int
}

func (r *fakeRing) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (r *fakeRing) SetPeers(peers []keys.Peer)    { r.mu.Lock(); r.peers = peers; r.mu.Unlock() }
func (r *fakeRing) Forked()                       {}
func (r *fakeRing) RequestRekey(node string) {
	r.mu.Lock()
	r.rekeyed = append(r.rekeyed, node)
	r.mu.Unlock()
}
func (r *fakeRing) StoreChanged() { r.mu.Lock(); r.changes++; r.mu.Unlock() }
func (r *fakeRing) Rotate(context.Context) (epochs.Epoch, error) {
	return epochs.Epoch{Number: 8}, nil
}
func (r *fakeRing) History() []audit.Record { return []audit.Record{{Event: "seen"}} }
func (r *fakeRing) Status() keys.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}
func (r *fakeRing) set(change func(*keys.Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
}

// fakeProber finds what the world says.
type fakeProber struct{ *world }

func (p fakeProber) Serve(ctx context.Context) error { <-ctx.Done(); return nil }
func (p fakeProber) Close() error                    { return nil }
func (p fakeProber) Fits(_ context.Context, node netip.Addr, mtu int) (int, error) {
	if p.sealing.path == nil {
		return mtu, nil
	}
	return p.sealing.path(node)
}

// fakeEndpoints is the world as an endpoint manager with one endpoint.
type fakeEndpoints struct{ *world }

var web = endpoint.Info{ID: "0a1b", Namespace: "demo", Pod: "web", Slot: 1,
	IPv4: netip.MustParseAddr("10.1.0.2"), HostIf: "weft0"}

func (e fakeEndpoints) Restore(context.Context) error {
	e.note("restored")
	return e.restore
}
func (e fakeEndpoints) Sync(context.Context) error { return e.sync }
func (e fakeEndpoints) Status() error              { return nil }
func (e fakeEndpoints) Problems() []string         { return e.host.records }
func (e fakeEndpoints) Mend(_ context.Context, hostIfs ...string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.host.mended = append(e.host.mended, hostIfs)
	e.host.mends++
	return nil
}
func (e fakeEndpoints) Unseen() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.host.unseen
}
func (e fakeEndpoints) List() []endpoint.Info { return []endpoint.Info{web} }
func (e fakeEndpoints) Get(name string) (endpoint.Info, bool) {
	return web, name == "demo/web" || name == "web"
}
func (e fakeEndpoints) BySlot(slot uint16) (endpoint.Info, bool) { return web, slot == 1 }
func (e fakeEndpoints) ByIP(_ uint32, addr netip.Addr) (endpoint.Info, bool) {
	return web, addr == web.IPv4
}

func (w *world) seams() seams {
	return seams{
		preflight: func(*config.Config, *slog.Logger) error { return nil },
		openStore: func(cfg *config.Config, log *slog.Logger) (store.Store, error) {
			if cfg.Store.Etcd.On() {
				return openStore(cfg, log)
			}
			return fakeStore{w}, nil
		},
		findLinks: func(*config.Config, *v1alpha1.Node) (startup.Links, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return startup.Links{Uplinks: w.host.uplinks, MTU: 1450}, w.linksErr
		},
		openDatapath: func(*config.Config, *v1alpha1.Node, startup.Links, *slog.Logger) (Datapath, error) {
			return fakeDatapath{world: w}, nil
		},
		openEndpoints: func(endpoint.Options) (Endpoints, http.Handler, error) {
			return fakeEndpoints{w}, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "cni") }), nil
		},
		openKeys: func(context.Context, keyParts) (*keyring, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.sealing.ringErr != nil {
				return nil, w.sealing.ringErr
			}
			return &keyring{
				Keys: w.sealing.ring, close: func() error { return nil },
				certificate: func(context.Context) (*x509.Certificate, error) {
					w.mu.Lock()
					defer w.mu.Unlock()
					return nil, w.sealing.certificate
				},
			}, nil
		},
		openProber: func(pathprobe.Options) (Prober, error) { return fakeProber{w}, nil },
		outward:    func(uplinks []string) ([]string, error) { return uplinks, nil },
		masquerade: func(_ string, m *masquerade.Options) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.masks = append(w.masks, m)
			w.host.unmasked = false
			return nil
		},
		masked: func(*masquerade.Options) (bool, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.host.unmasked, nil
		},
	}
}

func testConfig(t *testing.T) *config.Config {
	cfg := config.Default()
	cfg.Node, cfg.Metrics.Listen = "a", ""
	cfg.Encryption.Mode = config.EncryptionOff
	cfg.Paths = config.Paths{Run: filepath.Join(t.TempDir(), "run"), State: t.TempDir(),
		BPF: t.TempDir()}
	return cfg
}

// start runs an agent and returns its client and a way to end it.
func (w *world) start(t *testing.T, cfg *config.Config) (*admin.Client, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	tail := &logfile.Tail{}
	go func() {
		opt := Options{Version: "test", LogTail: tail,
			Log: slog.New(slog.NewTextHandler(tail, nil)), Notify: w.tell}
		done <- run(ctx, cfg, opt, w.seams())
	}()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { stop() })
	client := admin.NewClient(cfg.Socket())
	eventually(t, "the socket", func() bool { _, err := client.Ready(ctx); return err == nil })
	return client, stop
}

// tell is the service manager's ear.
func (w *world) tell(lines string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, lines)
	return nil
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("%s never came", what)
}

func ready(client *admin.Client) bool {
	state, err := client.Ready(context.Background())
	return err == nil && state.Ready
}
