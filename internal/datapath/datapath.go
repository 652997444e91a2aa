package datapath

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/flowtable"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/datapath/nexthop"
	"weft.dev/weft/internal/datapath/policymap"
	"weft.dev/weft/internal/netdev"
)

// What every endpoint sees as its gateway, on every node, so that a pod can move.
var (
	GatewayIPv4 = netip.MustParseAddr("169.254.1.1")
	GatewayIPv6 = netip.MustParseAddr("fe80::1")
)

// Options says how to open a node's datapath.
type Options struct {
	// BPFDir holds the pins, StateDir what must be put back one day (offloads, sysctls).
	BPFDir   string
	StateDir string
	Mode     Mode
	// GenericXDP hooks XDP programs in the kernel's generic, slower way, which any device can do.
	GenericXDP bool
	// Uplinks are the interfaces that lead to other nodes.
	Uplinks []string
	// HostAddrs are the node's own addresses, one per family; sources of ICMP errors.
	HostAddrs []netip.Addr
	// PodCIDRs are this node's own ranges: an address in them without an endpoint is refused.
	PodCIDRs []netip.Prefix
	// FlowEntries is the flow table's size per family, EventsPerSecond the limit of flow events per
	// CPU.
	FlowEntries     uint32
	EventsPerSecond uint32
	// Encrypt seals what crosses between nodes for a pod; nil: everything travels in cleartext.
	Encrypt *esp.Options
	Log     *slog.Logger
}

// Datapath is a node's running datapath: the pinned maps and links, and what the agent
// must know to change them. Its methods may be called from several goroutines.
type Datapath struct {
	opts     Options
	log      *slog.Logger
	mode     ModeStatus
	maps     *bpf.Maps
	progs    *hook.Programs
	undo     *netdev.Undo
	expedite expedite
	table    *flowtable.Table
	policy   *policymap.Table
	host     hostState
	hold     hold
	// sas are the SAs, from Open on. Their lock comes after mu.
	sas    *esp.Associations
	closed atomic.Bool
	// guarded says that the netfilter hook of policies is attached, see guardFor.
	guarded atomic.Bool
	// hops are other nodes. No lock of this type is held where it asks netlink.
	hops   *nexthop.Table
	kernel nexthop.Kernel // tests set it
	// attaching is held for reading while an endpoint is attached. It comes before mu.
	attaching sync.RWMutex
	mu        sync.Mutex // guards the maps' configuration and all below; held over no netlink call
	config    bpf.Config
	segment   segmentLinks
	// sealerIndex is that of weft_sealer, 0 without a sealer.
	sealerIndex atomic.Uint32
	gro         *sealerGRO
	eps         map[uint16]Endpoint
	// settled says that every endpoint of this node is known.
	settled bool
	// fault is called after each step that must be safe to die at; tests set it.
	fault func(step string) error
	// linkByName is netlink.LinkByName unless a test sets it.
	linkByName func(name string) (netlink.Link, error)
}

func (d *Datapath) step(name string) error {
	if d.fault == nil {
		return nil
	}
	return d.fault(name)
}

// constants are what the loader sets in every program of this datapath.
func (d *Datapath) constants() map[string]any {
	return map[string]any{"weft_sealing": bpf.Flag(d.opts.Encrypt != nil)}
}

// links attaches the programs of this run.
func (d *Datapath) links() *hook.Links {
	return &hook.Links{Dir: d.opts.BPFDir, Programs: d.progs, Step: d.step}
}

// Open loads the programs, adopts the pinned maps of a previous run, and hooks the uplinks,
// replacing each program atomically, or later where a map's layout has changed (hold). Endpoints
// are hooked by AttachEndpoint.
func Open(opts Options) (*Datapath, error) {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	d := &Datapath{opts: opts, log: opts.Log, eps: map[uint16]Endpoint{},
		host: hostState{changed: make(chan HostChange, 1)}}
	if err := d.prepare(); err != nil {
		return nil, err
	}
	if err := d.open(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Datapath) prepare() error {
	if os.Geteuid() != 0 {
		return errors.New("loading BPF programs needs root (CAP_BPF, CAP_NET_ADMIN): run the agent as root")
	}
	if err := checkBPFFS(d.opts.BPFDir); err != nil {
		return err
	}
	if err := os.MkdirAll(d.opts.BPFDir, 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	if err := hook.RenamePins(d.opts.BPFDir); err != nil {
		return fmt.Errorf("rename pinned links: %w", err)
	}
	mode, err := chooseMode(d.opts)
	if err != nil {
		return err
	}
	d.mode = mode
	if err := d.expedite.open(expeditedRCU, d.opts.StateDir); err != nil {
		d.log.Warn("the kernel's grace periods stay short, as a killed agent had set them", "err",
			err)
	}
	if d.undo, err = netdev.OpenUndo(d.opts.StateDir); err != nil {
		return err
	}
	d.host.set(func(h *hostState) { h.damaged = d.undo.Aside() })
	return nil
}

func (d *Datapath) open() error {
	var err error
	if d.maps, err = openMaps(d.opts.BPFDir, d.opts.FlowEntries, d.opts.Encrypt != nil,
		d.log); err != nil {
		return err
	}
	d.hold.begin(len(d.maps.Late))
	if d.progs, err = hook.Load(d.maps, d.constants(), d.needsFrags()); err != nil {
		return err
	}
	if d.table, err = flowtable.Open(d.maps, d.log); err != nil {
		return err
	}
	if d.policy, err = policymap.Open(d.maps); err != nil {
		return err
	}
	if err := d.openEncryption(); err != nil {
		return err
	}
	if err := d.configure(); err != nil {
		return err
	}
	if err := d.table.Adopt(); err != nil {
		return err
	}
	if err := d.openNextHops(); err != nil {
		return err
	}
	// Until the endpoints are restored, nothing can be said about addresses without one.
	if err := d.enterOwnRanges(); err != nil {
		return err
	}
	if err := d.hops.EnterOwnAddresses(); err != nil {
		return err
	}
	if err := d.attachNode(); err != nil {
		return err
	}
	// Nothing is forwarded before the hooks are there.
	return d.prepareHost()
}

// Close lets go of file descriptors. Everything pinned stays, and traffic with it.
func (d *Datapath) Close() error {
	d.closed.Store(true)
	if d.sas != nil {
		_ = d.sas.Close()
	}
	_ = d.gro.Close()
	if d.table != nil {
		d.table.Close()
	}
	if d.progs != nil {
		d.progs.Close()
	}
	if d.maps != nil {
		d.maps.Close()
	}
	return nil
}

// ModeStatus says which mode runs and why.
func (d *Datapath) ModeStatus() ModeStatus { return d.mode }

// configure writes the node's settings. The generation goes on from a previous run's, so
// that no decision cached then is taken for one of now; a new map starts anywhere, since the flows
// may be older than it.
func (d *Datapath) configure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.maps.Config.Lookup(uint32(0), &d.config); err != nil {
		return fmt.Errorf("read configuration map: %w", err)
	}
	if d.config.Generation == 0 {
		d.config.Generation = rand.Uint32()
	}
	// Endpoints of the run before have their sets before they are attached again.
	policed, err := d.policy.InUse()
	if err != nil {
		return err
	}
	// Where the slots' layout has changed they are empty still, and the hooks of the run before go
	// by theirs.
	policed = policed || d.config.Flags&bpf.ConfigPolicy != 0
	d.config.Flags = 0
	if policed {
		d.config.Flags |= bpf.ConfigPolicy
	}
	if d.policy.Marked() {
		d.config.Flags |= bpf.ConfigMarkedSets
	}
	if d.mode.Active == ModeStack {
		d.config.Flags |= bpf.ConfigStack
	}
	d.config.EventsPerSec = d.opts.EventsPerSecond
	d.configureAddresses()
	d.config.EspPort, d.config.SegmentIfindex, d.config.NetIfindex = 0, 0, 0
	if d.opts.Encrypt != nil {
		d.config.Flags |= bpf.ConfigSeal
		d.config.EspPort = bpf.Ntohs(d.opts.Encrypt.Port)
		d.config.SegmentIfindex, d.config.NetIfindex = d.segment.host, d.segment.net
	}
	if d.config.SealerIfindex != d.sealerIndex.Load() {
		d.config.SealerIfindex = 0
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return fmt.Errorf("look at this network namespace: %w", err)
	}
	d.config.Netns = uint32(ns.Ino)
	d.config.FlowEntries = d.maps.Cells4.MaxEntries()
	if d.config.FlowShare == 0 {
		d.setShares()
	}
	d.allowEither()
	return d.changed()
}

// configureAddresses notes the node's own addresses and what pods have as their gateway.
func (d *Datapath) configureAddresses() {
	d.config.NodeIp4, d.config.NodeIp6 = 0, bpf.Addr{}
	for _, a := range d.opts.HostAddrs {
		if a.Is4() {
			d.config.NodeIp4 = bpf.BE32(a)
		} else {
			d.config.NodeIp6 = bpf.ToAddr(a)
		}
	}
	d.config.GatewayIp4 = bpf.BE32(GatewayIPv4)
	d.config.GatewayIp6 = bpf.ToAddr(GatewayIPv6)
}

// void is changed for those who do not hold d.mu.
func (d *Datapath) void() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed()
}

// changed makes every cached forwarding decision void. Callers hold d.mu and have
// finished their changes to the maps.
func (d *Datapath) changed() error {
	d.config.Generation++
	if d.config.Generation == 0 {
		d.config.Generation = 1
	}
	return d.writeConfig()
}

// writeConfig lets the programs see the configuration. Callers hold d.mu.
func (d *Datapath) writeConfig() error {
	if err := d.maps.Config.Put(uint32(0), &d.config); err != nil {
		return fmt.Errorf("write configuration map: %w", err)
	}
	return nil
}

// Run follows the kernel until ctx ends: neighbours and links that carry peers, hooks and routes
// that somebody removed, and flows that have timed out.
func (d *Datapath) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { d.table.Collect(ctx) })
	err := d.followHost(ctx)
	cancel()
	wg.Wait()
	return err
}
