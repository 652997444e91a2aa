package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/statefile"
)

// Options are what a Manager needs to know.
type Options struct {
	// StateDir holds the records; it is made if missing. One manager at a time.
	StateDir string
	NodeName string
	// Ranges are the node's pod address ranges, of one or both families.
	Ranges []netip.Prefix
	// MTU is that of pod interfaces. Default: 1500.
	MTU int
	// HostAddrs are never given to a pod.
	HostAddrs []netip.Addr
	// Datapath attaches programs. May be nil for a manager that only removes.
	Datapath Datapath
	// Directory publishes endpoints. Optional.
	Directory Directory
	// PodSpec returns the declared pod of a "namespace/name" key and of a UID, unless either says
	// none; nil if there is none. An error is for when that cannot be found out, or another pod
	// of that name is declared. Optional.
	PodSpec func(key, uid string) (*v1alpha1.Pod, error)
	// Identity returns the number of a workload identity, giving it one if it has none. labels are
	// all of the pod's. Optional.
	Identity func(namespace, serviceAccount string, labels map[string]string) (uint32, error)
	// Policies has endpoints' policy sets. Optional: none has any.
	Policies Policies
	// Log. Default: slog.Default().
	Log *slog.Logger
}

// Manager owns the node's endpoints. It acts in the network namespace of its process.
// Its methods may be called from any goroutine: calls for one endpoint wait for each
// other, calls for different endpoints run side by side.
type Manager struct {
	opt  Options
	log  *slog.Logger
	disk *disk
	boot string
	// endpoints and objects are locked by endpoint ID and published key, in that order.
	endpoints, objects keyLocks

	mu       sync.Mutex // guards what follows, and is never held across a system call that can wait
	records  map[string]record
	nets     *ipam.Networks
	slots    *ipam.Slots
	restored bool
	// unattached and unpublished are what Sync must try again.
	unattached  map[string]error
	unpublished map[string]bool
	// unseen are endpoints whose interface is there and whose namespace cannot be looked into.
	unseen map[string]error
	retry  *time.Timer

	// tables reads the node's routes and neighbours; tests count how often.
	tables func(*netlink.Handle) (*hostTables, error)
	// step is called after each step of a change; tests make it fail or panic there.
	step func(name string) error
}

// NewManager opens the state directory and loads its records. Call Restore before the
// first Add, so that what an earlier manager left is in order.
func NewManager(opt Options) (*Manager, error) {
	if opt.StateDir == "" {
		return nil, errors.New("endpoint manager: StateDir is empty")
	}
	if opt.MTU == 0 {
		opt.MTU = 1500
	}
	if opt.MTU < 68 || opt.MTU > 65535 {
		return nil, fmt.Errorf("endpoint manager: mtu %d is not in 68-65535", opt.MTU)
	}
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	nets, err := ipam.NewNetworks(opt.Ranges, opt.HostAddrs)
	if err != nil {
		return nil, fmt.Errorf("pod address ranges: %w", err)
	}
	m := &Manager{
		opt: opt, log: opt.Log,
		records: map[string]record{}, nets: nets, slots: ipam.NewSlots(MaxSlot),
		unattached: map[string]error{}, unpublished: map[string]bool{}, unseen: map[string]error{},
		step: func(string) error { return nil }, tables: readHost,
	}
	if m.boot, err = bootID(); err != nil {
		return nil, err
	}
	if m.disk, err = openDisk(opt.StateDir, m.log); err != nil {
		return nil, err
	}
	return m, m.load()
}

// attachNow attaches an endpoint with its policy sets, or not at all.
func (m *Manager) attachNow(rec record) error {
	ep := rec.Datapath()
	if m.opt.Policies == nil {
		return m.opt.Datapath.AttachEndpoint(ep)
	}
	var err error
	if ep.EgressSet, ep.IngressSet, err = m.opt.Policies.Of(rec.Info); err != nil {
		return fmt.Errorf("policy of %s: %w", rec.Key(), err)
	}
	return m.opt.Policies.Attached(rec.Info, m.opt.Datapath.AttachEndpoint(ep))
}

// load takes the records from disk. Of two that claim one address or slot, which only
// damage from outside can bring about, the later one is marked for removal.
func (m *Manager) load() error {
	records, err := m.disk.load()
	if err != nil {
		return err
	}
	slices.SortFunc(records, func(a, b record) int { return a.Created.Compare(b.Created) })
	for _, rec := range records {
		if rec.State != StateGone {
			if err := m.adopt(rec); err != nil {
				m.log.Error("endpoint record contradicts another, removing the endpoint",
					"endpoint", rec.ID, "pod", rec.Key(), "err", err)
				rec.State = StateDeleting
			}
		}
		m.records[rec.ID] = rec
	}
	m.disk.loadCursors().apply(m.nets, m.slots)
	return nil
}

func (m *Manager) adopt(rec record) error {
	errs := []error{m.slots.Adopt(rec.ID, rec.Slot)}
	for _, a := range rec.Addresses() {
		errs = append(errs, m.nets.Of(rec.NetworkID).Adopt(rec.ID, a))
	}
	return errors.Join(errs...)
}

// release frees what the record holds in the pools. Call with mu held.
func (m *Manager) release(rec record) {
	m.slots.Release(rec.ID, rec.Slot)
	m.nets.Release(rec.NetworkID, rec.ID, rec.Addresses()...)
}

// record returns the record of an endpoint.
func (m *Manager) record(id string) (record, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, ok := m.records[id]
	return rec, ok
}

// remember replaces the record in memory.
func (m *Manager) remember(rec record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records[rec.ID] = rec
}

// snapshot returns the records in the order of their making.
func (m *Manager) snapshot() []record {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]record, 0, len(m.records))
	for _, rec := range m.records {
		out = append(out, rec)
	}
	slices.SortFunc(out, func(a, b record) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// List returns the endpoints by slot. Those that are just being made or removed are in it
// too, as State tells, so that nobody prunes what is half there.
func (m *Manager) List() []Info {
	var out []Info
	for _, rec := range m.snapshot() {
		if rec.State != StateGone {
			out = append(out, rec.Info)
		}
	}
	slices.SortFunc(out, func(a, b Info) int { return cmp.Compare(a.Slot, b.Slot) })
	return out
}

// Get finds an endpoint by ID, host interface, "namespace/pod", container ID, or by a
// pod's bare name if only one namespace has it. A ready endpoint wins over any other.
func (m *Manager) Get(nameOrID string) (Info, bool) {
	return m.find(func(i Info) bool {
		return i.ID == nameOrID || i.HostIf == nameOrID || i.Key() == nameOrID ||
			i.ContainerID == nameOrID
	}, func(i Info) bool { return i.Pod == nameOrID })
}

// BySlot finds an endpoint by its slot. It is cheap enough to ask for every flow event.
func (m *Manager) BySlot(slot uint16) (Info, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, _ := m.slots.Owner(slot)
	return m.live(id)
}

// ByIP finds an endpoint by one of its addresses, as cheaply.
func (m *Manager) ByIP(network uint32, addr netip.Addr) (Info, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, _ := m.nets.Owner(network, addr.Unmap())
	return m.live(id)
}

// live returns an endpoint unless only its tombstone is left. Call with mu held.
func (m *Manager) live(id string) (Info, bool) {
	rec, ok := m.records[id]
	if !ok || rec.State == StateGone {
		return Info{}, false
	}
	return rec.Info, true
}

// find returns the newest endpoint, ready ones first, that the first fruitful match
// accepts. Only the first match may be ambiguous across namespaces.
func (m *Manager) find(matches ...func(Info) bool) (Info, bool) {
	list := m.List()
	for n, match := range matches {
		var best Info
		namespaces := map[string]bool{}
		for _, i := range list {
			if !match(i) {
				continue
			}
			namespaces[i.Namespace] = true
			if best.ID == "" || better(i, best) {
				best = i
			}
		}
		if best.ID != "" {
			return best, n == 0 || len(namespaces) == 1
		}
	}
	return Info{}, false
}

func better(a, b Info) bool {
	if (a.State == StateReady) != (b.State == StateReady) {
		return a.State == StateReady
	}
	return a.Created.After(b.Created)
}

// Status says whether Add can work now. A full pool is no reason to call the whole node
// unable: what runs must not be evicted because nothing more fits.
func (m *Manager) Status() error {
	m.mu.Lock()
	restored := m.restored
	m.mu.Unlock()
	if !restored {
		return fmt.Errorf("%w: endpoints are still being restored", ErrUnavailable)
	}
	if m.opt.Datapath == nil {
		return fmt.Errorf("%w: no datapath", ErrUnavailable)
	}
	if err := statefile.WriteVolatile(m.disk.probePath(), nil); err != nil {
		return fmt.Errorf("%w: state directory cannot be written: %w", ErrUnavailable, err)
	}
	return nil
}

// done ends a step: it gives up if the caller has, or if a test wants it to.
func (m *Manager) done(ctx context.Context, step string) error {
	if err := m.step(step); err != nil {
		return fmt.Errorf("after step %s: %w", step, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("after step %s: %w", step, err)
	}
	return nil
}
