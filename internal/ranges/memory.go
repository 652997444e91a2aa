// Package ranges remembers which ranges and addresses are the cluster's: those of Node objects and
// published endpoints as they are, and as they were. What was the cluster's once is never taken for
// the world outside because an object is missing; somebody has to say that it may be forgotten.
package ranges

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"weft.dev/weft/internal/store"
)

// Kind says what an entry was to its node.
type Kind string

// The kinds of entries.
const (
	// Range is one of a node's podCIDRs, Address one of its own addresses.
	Range   Kind = "range"
	Address Kind = "address"
	// Endpoint is a pod's address outside its node's ranges.
	Endpoint Kind = "endpoint"
)

// Entry is a range or, as a range of one, an address of the cluster.
type Entry struct {
	Prefix netip.Prefix `json:"prefix"`
	Kind   Kind         `json:"kind"`
	// Node is whose it is or was, "" if nobody knows.
	Node string `json:"node,omitempty"`
	// Lost is when it stopped being that of a node in use, zero while it is.
	Lost time.Time `json:"lost,omitzero"`
	// Why says how it was lost.
	Why string `json:"why,omitempty"`
}

// View is what a snapshot means with all that was known before it.
type View struct {
	// Published are the addresses of pods outside the ranges of their nodes, by node.
	Published map[string][]netip.Prefix
	// Lost are the entries without a node in use, in order.
	Lost []Entry
	// Refused are published addresses that cannot be what they say.
	Refused []string
	// Sealed are addresses of pods that have asked to be sealed and whose objects are gone.
	Sealed []netip.Addr
}

// Input is what there is to learn from.
type Input struct {
	Snapshot *store.Snapshot
	// Self is this node's name, Own what it runs with: its own object may be missing too.
	Self string
	Own  []netip.Prefix
	// Cluster are the configured ranges: in them, nothing needs to be remembered of single pods.
	Cluster []netip.Prefix
	// Asking are the addresses that pods want sealed, Others those of endpoints that want nothing
	// of the kind.
	Asking, Others []netip.Addr
}

// Memory is what is known of the cluster, also over restarts. It is safe for concurrent use.
type Memory struct {
	path string
	now  func() time.Time

	mu      sync.Mutex
	entries map[netip.Prefix]Entry
	sealed  map[netip.Addr]time.Time // since when nobody speaks for it, zero: somebody does
	fresh   bool                     // nothing was remembered: Adopt must come before anything is written
	saved   string                   // what the file has
}

// maxEndpoints bounds the addresses of pods outside the ranges of their nodes: the routes map has
// room for 65536 entries in all.
const maxEndpoints = 8192

// Fresh says whether there was no file to remember from. Nothing is written until Adopt has been
// called then.
func (m *Memory) Fresh() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fresh
}

// Adopt takes over what somebody else remembers, as lost until a node claims it.
func (m *Memory) Adopt(entries []Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fresh = false
	for _, e := range entries {
		if _, known := m.entries[e.Prefix]; !known {
			e.Lost, e.Why = m.now(), "known from a previous run, no object names it"
			m.entries[e.Prefix] = e
		}
	}
}

// Learn takes in a snapshot. The view is good also when an error says that it could not be written
// down.
func (m *Memory) Learn(in Input) (*View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := lesson{Memory: m, in: in, view: &View{Published: map[string][]netip.Prefix{}},
		held: map[netip.Prefix]bool{}, strange: map[netip.Prefix]bool{}}
	l.learnNodes()
	l.learnUnused()
	l.learnOwnChange()
	l.learnEndpoints()
	l.settle()
	l.view.Sealed = m.learnSealed(in)
	return l.view, m.save()
}

// ErrInUse says that a node's ranges are not lost: they cannot be forgotten.
var ErrInUse = errors.New("is in use")

// Forget forgets what was lost of a node, by its name, or one lost range. It returns what that was.
func (m *Memory) Forget(what string) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	prefix, _ := netip.ParsePrefix(what)
	var gone []Entry
	known := false
	for p, e := range m.entries {
		if e.Node != what && p != prefix {
			continue
		}
		known = true
		if !e.Lost.IsZero() {
			gone = append(gone, e)
			delete(m.entries, p)
		}
	}
	switch {
	case known && len(gone) == 0:
		return nil, fmt.Errorf("%s %w: remove its Node object first", what, ErrInUse)
	case len(gone) == 0:
		return nil, fmt.Errorf("%s is neither the name of a node that was lost nor a lost range: `weft status` lists them", what)
	}
	slices.SortFunc(gone, byPrefix)
	return gone, m.save()
}

// InUse are the entries that were some node's when the memory was written last.
func (m *Memory) InUse() []Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Entry
	for _, e := range m.entries {
		if e.Lost.IsZero() {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, byPrefix)
	return out
}

func byPrefix(a, b Entry) int { return a.Prefix.Compare(b.Prefix) }

// String is the entry as people read it.
func (e Entry) String() string {
	whose := "node unknown"
	if e.Node != "" {
		whose = "node " + e.Node
	}
	name := strings.TrimSuffix(strings.TrimSuffix(e.Prefix.String(), "/32"), "/128")
	return fmt.Sprintf("%s (%s, %s since %s)", name, whose, e.Why,
		e.Lost.UTC().Format(time.RFC3339))
}
