// Package nexthop keeps how other nodes are reached: the routes map, the next hops and the ends of
// tunnels under each node's index, and the kernel's routes and managed neighbours beside them. It
// gives nodes their indexes, and clears what is under one before it is another node's. This node's
// own ranges and addresses are in the same map, and so are its business. Which nodes there are, and
// what their keys are, others say.
package nexthop

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/netdev"
)

// Node is a peer whose pods are reached over the wire.
type Node struct {
	Name      string
	Addresses []netip.Addr
	// PodCIDRs are the ranges, and single addresses as ranges of one, that its pods have.
	PodCIDRs []netip.Prefix
	// Missing says that addresses and ranges are the cluster's and no known node's: nothing goes
	// there in either way, and nothing is taken from there. Such a node may have the name of
	// another in the list, or none.
	Missing bool
}

// Options are what a table must know of this node.
type Options struct {
	// Uplinks are the interfaces with hooks that lead to other nodes.
	Uplinks []string
	// HostAddrs are this node's own addresses, as its Node object lists them.
	HostAddrs []netip.Addr
	// PodCIDRs are this node's own ranges.
	PodCIDRs []netip.Prefix
	// Sealing says that what crosses between nodes for a pod is sealed.
	Sealing bool
	// GenericXDP says that XDP programs run in the kernel's generic way.
	GenericXDP bool
}

// Host is what a table works on. All of it stays the caller's.
type Host struct {
	Maps *bpf.Maps
	// SAs hear of nodes that come and leave, and of the ends of their tunnels.
	SAs *esp.Associations
	// Undo notes neighbours that the kernel is asked to keep.
	Undo *netdev.Undo
	// Kernel is what is asked of netlink.
	Kernel *Kernel
	// Void makes every cached forwarding decision void. It is called without mu held.
	Void func() error
	// Step is called after each step that must be safe to die at; an error ends the work there.
	Step func(name string) error
	Log  *slog.Logger
}

// Kernel are the lists that a table reads. Those that are nil come from the kernel.
type Kernel struct {
	// Routes are those of Weft's protocol.
	Routes func() ([]netlink.Route, error)
	// Neighbors are those of all interfaces and both families.
	Neighbors func() ([]netlink.Neigh, error)
}

// Table is what this node knows of how others are reached. Safe for concurrent use.
//
// Its locks: work is held over all of a synchronisation, netlink included, and is taken before any
// lock of the caller's that Void takes. mu is a leaf: it is held over no netlink call and no call
// of the caller's, so that whoever holds other locks may ask.
type Table struct {
	opts Options
	host Host
	maps *bpf.Maps
	log  *slog.Logger

	work sync.Mutex // guards what follows, the next hops and what is known of peers in the maps
	list []Node
	// freed are indexes whose nodes have left, until all that leads there is gone.
	freed map[uint32]bool
	// hops are the addresses of next hops, with the weft_nexthops indexes that use them.
	hops map[netip.Addr][]uint32
	// used are the weft_nexthops indexes that may hold a next hop.
	used map[uint32]bool
	// settled says that nothing of nodes that have left is in the maps.
	settled bool
	handles identityHandles

	mu    sync.Mutex // guards what follows, and the entries of the routes map
	slots map[string]uint32
	// was is what a previous run left in the routes map, until the first synchronisation.
	was map[bpf.RouteKey]bpf.Route
	// problems are why nodes cannot be reached, by name.
	problems map[string]string
	// left are the ranges that the routes map had no room for, and leftText says so.
	left     map[string]bool
	leftText string
	// unreachable says that this node's own ranges have their last-resort routes.
	unreachable bool
}

// Open takes over what a previous run wrote, so that each node keeps its index and the maps are
// right all the time while the agent catches up.
func Open(host Host, opts Options) (*Table, error) {
	t := &Table{
		opts: opts, host: host, maps: host.Maps, log: host.Log, freed: map[uint32]bool{},
		hops: map[netip.Addr][]uint32{}, used: map[uint32]bool{}, slots: map[string]uint32{},
		was: map[bpf.RouteKey]bpf.Route{},
	}
	have, err := t.readRoutes()
	if err != nil {
		return nil, err
	}
	for key, route := range have {
		if isOwn(route) {
			continue
		}
		t.was[key] = route
		if route.Node != 0 {
			t.used[route.Node*2], t.used[route.Node*2+1] = true, true
		}
	}
	return t, t.handles.restore(host.Maps)
}

func (t *Table) step(name string) error {
	if t.host.Step == nil {
		return nil
	}
	return t.host.Step(name)
}

// Inherited is a range, or with Host a node's own address, that a previous run had in the routes
// map as another node's.
type Inherited struct {
	Prefix netip.Prefix
	Host   bool
}

// Inherited lists what a previous run knew as the cluster's beside this node's own ranges. It says
// nothing once SetNodes has succeeded.
func (t *Table) Inherited() []Inherited {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Inherited
	for key, route := range t.was {
		out = append(out, Inherited{bpf.PrefixOf(key), route.Flags&bpf.RouteHost != 0})
	}
	slices.SortFunc(out, func(a, b Inherited) int { return a.Prefix.Compare(b.Prefix) })
	return out
}

// Index is a node's index.
func (t *Table) Index(name string) (index uint32, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	index, known = t.slots[name]
	return index, known
}

// NameOf is the node with an index.
func (t *Table) NameOf(index uint32) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, i := range t.slots {
		if i == index {
			return name
		}
	}
	return fmt.Sprintf("node %d", index)
}

// Assign gives a node an index that is nobody else's.
func (t *Table) Assign(name string, index uint32) {
	t.mu.Lock()
	t.slots[name] = index
	t.mu.Unlock()
	t.host.SAs.EnterPeer(name, index)
}
