package flows

import (
	"sync"
)

// DefaultRing is how many records a Hub keeps.
const DefaultRing = 4096

// Hub keeps the last records and hands new ones to followers.
type Hub struct {
	mu        sync.Mutex
	ring      []Flow
	next      int
	total     uint64
	counts    map[Kind]uint64
	followers map[*Follower]struct{}
	lost      uint64
}

// Kind is what records are counted by.
type Kind struct {
	Type    string
	Verdict string
}

// Stats counts what went through a Hub since it was made.
type Stats struct {
	Seen      map[Kind]uint64
	Followers int
	// Lost were not delivered to a follower that was too slow.
	Lost uint64
}

// NewHub makes a Hub that keeps the last size records; 0 means DefaultRing.
func NewHub(size int) *Hub {
	if size <= 0 {
		size = DefaultRing
	}
	return &Hub{
		ring:      make([]Flow, 0, size),
		counts:    map[Kind]uint64{},
		followers: map[*Follower]struct{}{},
	}
}

// Publish records one flow. It never blocks.
func (h *Hub) Publish(flow Flow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[Kind{string(flow.Type), flow.Verdict}]++
	if len(h.ring) < cap(h.ring) {
		h.ring = append(h.ring, flow)
	} else {
		h.ring[h.next] = flow
	}
	h.next = (h.next + 1) % cap(h.ring)
	h.total++
	for follower := range h.followers {
		if !follower.offer(flow) {
			h.lost++
		}
	}
}

// Last returns at most limit of the newest selected records, oldest first.
// A limit of 0 or less means all that are kept.
func (h *Hub) Last(limit int, match *Matcher) []Flow {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last(limit, match)
}

func (h *Hub) last(limit int, match *Matcher) []Flow {
	var found []Flow
	for back := 1; back <= len(h.ring); back++ {
		flow := h.ring[(h.next-back+cap(h.ring))%cap(h.ring)]
		if match != nil && !match.Match(flow) {
			continue
		}
		found = append(found, flow)
		if limit > 0 && len(found) == limit {
			break
		}
	}
	for i, j := 0, len(found)-1; i < j; i, j = i+1, j-1 {
		found[i], found[j] = found[j], found[i]
	}
	return found
}

// Follow returns past records as Last does, and a follower that gets every later
// one: none is missed or seen twice in between. A negative limit means no past.
func (h *Hub) Follow(limit int, match *Matcher, buffer int) ([]Flow, *Follower) {
	h.mu.Lock()
	defer h.mu.Unlock()
	follower := &Follower{hub: h, match: match, flows: make(chan Flow, buffer)}
	h.followers[follower] = struct{}{}
	if limit < 0 {
		return nil, follower
	}
	return h.last(limit, match), follower
}

// Stats returns the counts so far.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := make(map[Kind]uint64, len(h.counts))
	for kind, count := range h.counts {
		seen[kind] = count
	}
	return Stats{Seen: seen, Followers: len(h.followers), Lost: h.lost}
}

// Follower receives the selected records of a Hub, as long as it keeps up.
type Follower struct {
	hub   *Hub
	match *Matcher
	flows chan Flow
	// lost counts what did not fit since the last record that did; the hub's lock guards it.
	lost uint64
}

// C is where the records arrive. A record's Lost says how many are missing before it.
func (f *Follower) C() <-chan Flow { return f.flows }

// offer delivers a record if there is room. The hub's lock is held.
func (f *Follower) offer(flow Flow) bool {
	if f.match != nil && !f.match.Match(flow) {
		return true
	}
	flow.Lost = f.lost
	select {
	case f.flows <- flow:
		f.lost = 0
		return true
	default:
		f.lost++
		return false
	}
}

// Close stops the delivery. It does not close C.
func (f *Follower) Close() {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	delete(f.hub.followers, f)
}
