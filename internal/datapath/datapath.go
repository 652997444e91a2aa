package datapath

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
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
	// FlowEntries is the flow table's size per family, EventsPerSecond the limit of flow events per CPU.
	FlowEntries     uint32
	EventsPerSecond uint32
	// Encrypt seals what crosses between nodes for a pod; nil: everything travels in plain.
	Encrypt *EncryptOptions
	Log     *slog.Logger
}

// Datapath is a node's running datapath: the pinned maps and links, and what the agent
// must know to change them. Its methods may be called from several goroutines.
type Datapath struct {
	opts   Options
	log    *slog.Logger
	mode   ModeStatus
	maps   *maps
	progs  *programs
	undo   *undoFile
	hurry  hurry
	mu     sync.Mutex // guards the maps' configuration and all below
	config bpfConfig
	pair   uint32 // index of weft_host, if packets are sealed
	nodes  nodeTable
	sas    associations
	ended  chan FlowEvent // flows that timed out, for Events
	eps    map[uint16]Endpoint
}

// Open loads the programs, adopts the pinned maps of a previous run, and hooks the uplinks,
// replacing each program atomically. Endpoints are hooked by AttachEndpoint.
func Open(opts Options) (*Datapath, error) {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	d := &Datapath{opts: opts, log: opts.Log, eps: map[uint16]Endpoint{}, ended: make(chan FlowEvent, 1024)}
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
	mode, err := chooseMode(d.opts)
	if err != nil {
		return err
	}
	d.mode = mode
	if err := d.hurry.open(expeditedRCU, d.opts.StateDir); err != nil {
		d.log.Warn("the kernel's grace periods stay short, as a killed agent had set them", "err", err)
	}
	d.undo, err = openUndo(filepath.Join(d.opts.StateDir, "undo.json"))
	return err
}

func (d *Datapath) open() error {
	var err error
	if d.maps, err = openMaps(d.opts.BPFDir, d.opts.FlowEntries, d.opts.Encrypt != nil, d.log); err != nil {
		return err
	}
	if d.progs, err = loadPrograms(d.maps, d.constants(), d.needsFrags()); err != nil {
		return err
	}
	if err := d.prepareHost(); err != nil {
		return err
	}
	if err := d.openEncryption(); err != nil {
		return err
	}
	if err := d.configure(); err != nil {
		return err
	}
	if err := d.nodes.restore(d.maps); err != nil {
		return err
	}
	// Until the endpoints are restored, nothing can be said about addresses without one.
	if err := d.dropOwnRanges(); err != nil {
		return err
	}
	if err := d.attachUplinks(); err != nil {
		return err
	}
	return nil
}

// Close lets go of file descriptors. Everything pinned stays, and traffic with it.
func (d *Datapath) Close() error {
	d.closeEngine()
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
// that no decision cached then is taken for one of now.
func (d *Datapath) configure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.maps.Config.Lookup(uint32(0), &d.config); err != nil {
		return fmt.Errorf("read configuration map: %w", err)
	}
	d.config.Flags = 0
	if d.mode.Active == ModeStack {
		d.config.Flags |= bpfConfigStack
	}
	d.config.EventsPerSec = d.opts.EventsPerSecond
	d.config.NodeIp4, d.config.NodeIp6 = 0, bpfAddr{}
	for _, a := range d.opts.HostAddrs {
		if a.Is4() {
			d.config.NodeIp4 = be32(a)
		} else {
			d.config.NodeIp6 = toAddr(a)
		}
	}
	d.config.EspPort, d.config.PairIfindex = 0, 0
	if d.opts.Encrypt != nil {
		d.config.Flags |= bpfConfigSeal
		d.config.EspPort = ntohs(d.opts.Encrypt.Port)
		d.config.PairIfindex = d.pair
	}
	d.config.GatewayIp4 = be32(GatewayIPv4)
	d.config.GatewayIp6 = toAddr(GatewayIPv6)
	return d.changed()
}

// changed makes every cached forwarding decision void. Callers hold d.mu and have
// finished their changes to the maps.
func (d *Datapath) changed() error {
	d.config.Generation++
	if d.config.Generation == 0 {
		d.config.Generation = 1
	}
	if err := d.maps.Config.Put(uint32(0), &d.config); err != nil {
		return fmt.Errorf("write configuration map: %w", err)
	}
	return nil
}

// setOwnRanges puts this node's pod ranges into the routes as node 0: an address in them that no
// endpoint has is refused. Not once an interface of another CNI plugin is attached: then
// others may own addresses in them.
func (d *Datapath) setOwnRanges() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ep := range d.eps {
		if ep.Chained {
			return nil
		}
	}
	for _, prefix := range d.opts.PodCIDRs {
		key := routeKey(prefix)
		if err := d.maps.Routes.Put(&key, &bpfRoute{}); err != nil {
			return fmt.Errorf("write route %s: %w", prefix, err)
		}
	}
	if err := d.changed(); err != nil {
		return err
	}
	return d.replaceUnreachable()
}

// dropOwnRanges removes every range of node 0, also those of another configuration.
func (d *Datapath) dropOwnRanges() error {
	var key bpfRouteKey
	var value bpfRoute
	var own []bpfRouteKey
	for entries := d.maps.Routes.Iterate(); entries.Next(&key, &value); {
		if value.Node == 0 {
			own = append(own, key)
		}
	}
	for _, k := range own {
		if err := deleteKey(d.maps.Routes, &k); err != nil {
			return err
		}
	}
	return nil
}

// Run follows the kernel until ctx ends: neighbours and links that carry peers, and flows
// that have timed out.
func (d *Datapath) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { d.collectFlows(ctx) })
	err := d.followNeighbors(ctx)
	cancel()
	wg.Wait()
	return err
}
