package keys

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/sadb"
)

// States of a peer.
const (
	// StateUp: both directions run on the newest epoch.
	StateUp = "up"
	// StateDraining: as up; keys of an older epoch are kept for packets on their way.
	StateDraining = "draining"
	// StateChecking: keys are in use that a former agent left; the peer was not asked yet whether
	// it has the same.
	StateChecking = "checking"
	// StateMoving: an older epoch is in use, an exchange for the newest is planned or under way.
	StateMoving = "moving"
	// StateBehind: an older epoch is in use, and the last exchange for the newest failed.
	StateBehind = "behind"
	// StateHalf: packets can be sent or received with keys, not both.
	StateHalf = "half"
	// StateNoKey: there is no key yet, an exchange is planned or under way. Packets are dropped.
	StateNoKey = "no_key"
	// StateFailed: there is no key, and the last exchange failed. Packets are dropped.
	StateFailed = "failed"
	// StateExpired: the keys reached their hard TTL and there are no newer ones. Packets are
	// dropped.
	StateExpired = "expired"
	// StateNoEpoch: there is no key, and no epoch that this node can read. Packets are dropped.
	StateNoEpoch = "no_epoch"
	// StateLeaving: the node is gone; its keys go after the drain.
	StateLeaving = "leaving"
)

// States are all states of a peer.
func States() []string {
	return []string{StateUp, StateDraining, StateChecking, StateMoving, StateBehind, StateHalf,
		StateNoKey, StateFailed, StateExpired, StateNoEpoch, StateLeaving}
}

// Status is how this node's keys are.
type Status struct {
	Node string `json:"node"`
	// Ready: the datapath and the store were read.
	Ready bool `json:"ready"`
	// Epoch is the newest that this node can read, 0 for none; Newest the newest there is.
	Epoch  uint64 `json:"epoch"`
	Newest uint64 `json:"newest"`
	// Leader is the node that makes epochs, as far as that is known.
	Leader   string `json:"leader,omitempty"`
	IsLeader bool   `json:"isLeader"`
	KEK      string `json:"kek"`
	// NextRotation is when the newest epoch is old enough for the next; one that this node cannot
	// read does not count.
	NextRotation time.Time `json:"nextRotation,omitzero"`
	// OldestKey is when the oldest key in the datapath was installed.
	OldestKey        time.Time       `json:"oldestKey,omitzero"`
	OldestKeySeconds int64           `json:"oldestKeySeconds"`
	Epochs           []epochs.Status `json:"epochs"`
	Peers            []PeerStatus    `json:"peers"`
	// TTLRatio is how much of the hard TTL of the epoch in use is over: 0 to 1.
	TTLRatio float64 `json:"ttlRatio"`
	// KMS is how the KMS has answered.
	KMS kek.Health `json:"kms,omitzero"`
	// Problems are what does not work, each by a sentence.
	Problems []string `json:"problems,omitempty"`
	Counters Counters `json:"counters"`
}

// Settled says whether every peer runs on the newest epoch in both directions.
func (s Status) Settled() bool {
	for _, p := range s.Peers {
		if p.State != StateUp && p.State != StateDraining && p.State != StateLeaving {
			return false
		}
	}
	return s.Epoch != 0 && s.Epoch == s.Newest
}

// PeerStatus is how the keys with another node are.
type PeerStatus struct {
	Name string `json:"name"`
	// State is one of the State… names.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// EpochTX is what this node seals with; EpochRX the newest that it can open.
	EpochTX uint64 `json:"epochTX"`
	EpochRX uint64 `json:"epochRX"`
	// PostQuantum and Group say how the last exchange agreed on keys; empty before this process had
	// one.
	PostQuantum bool   `json:"postQuantum"`
	Group       string `json:"group,omitempty"`
	// Lanes is how many keys at once the peer sends with.
	Lanes int `json:"lanes,omitempty"`
	// Exchanged is the last good exchange of this process.
	Exchanged time.Time `json:"exchanged,omitzero"`
	Expires   time.Time `json:"expires,omitzero"`
	LastError string    `json:"lastError,omitempty"`
	// ErrorKind is the error in one word.
	ErrorKind string `json:"errorKind,omitempty"`
	// Waits says what keeps the peer from the newest epoch although nothing failed.
	Waits   string    `json:"waits,omitempty"`
	NextTry time.Time `json:"nextTry,omitzero"`
}

// Counters count since this process began.
type Counters struct {
	// Handshakes is exchanges by outcome, dialled and served.
	Handshakes map[string]uint64 `json:"handshakes"`
	epochs.Counters
	// RekeyRequests is how often packets without a key asked for an exchange.
	RekeyRequests uint64 `json:"kicks"`
	ClockJumps    uint64 `json:"clockJumps"`
	// VMForks is how often this virtual machine was found to have gone back to a snapshot, or to
	// have been copied.
	VMForks uint64 `json:"vmForks"`
	// Turned counts what was refused before a certificate was seen.
	Turned handshake.Turned `json:"turned"`
}

// Status tells how everything is now.
func (m *Manager) Status() Status {
	leader, oldest, turned, extended := m.opt.Leader.Holder(), m.table.Oldest(), m.turned(), m.extensions()
	problems := m.troubles()
	s := Status{Node: m.opt.Node, Leader: leader, KEK: m.opt.KEK.URL(), OldestKey: oldest}
	if m.opt.KMS != nil {
		s.KMS = m.opt.KMS.Health()
	}
	if !oldest.IsZero() {
		s.OldestKeySeconds = int64(max(m.clock.Wall().Sub(oldest), 0).Seconds())
	}
	m.mu.Lock()
	s.Ready, s.Counters = m.ready, Counters{ClockJumps: m.clockJumps, VMForks: m.vmForks,
		Turned: turned}
	m.mu.Unlock()
	m.peers.mu.Lock() // no peer moves while both owners tell
	defer m.peers.mu.Unlock()
	of := m.epochs.Summary(extended)
	s.Ready = s.Ready && of.Listed
	s.Epoch, s.Newest, s.IsLeader, s.NextRotation, s.TTLRatio = of.Target, of.Newest, of.IsLeader, of.NextRotation, of.TTLRatio
	s.Counters.Counters, s.Epochs = of.Counters, of.Epochs
	m.peers.tell(&s, of.View)
	s.Problems = slices.Concat(of.Problems, problems)
	return s
}

// troubles are those of the Manager itself, and of the audit log.
func (m *Manager) troubles() []string {
	var out []string
	if m.opt.AuditErr != nil {
		if err := m.opt.AuditErr(); err != nil {
			out = append(out, "audit: "+audit.Line(err))
		}
	}
	return append(out, m.problems.list()...)
}

// tell adds how all peers are, by what they move by. The caller holds mu.
func (p *peers) tell(s *Status, v epochs.View) {
	s.Counters.Handshakes, s.Counters.RekeyRequests = maps.Clone(p.handshakes), p.rekeys
	s.Peers = []PeerStatus{}
	perEpoch := map[uint64]int{}
	for _, q := range p.byName {
		status := p.status(q, v)
		perEpoch[status.EpochTX]++
		s.Peers = append(s.Peers, status)
	}
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int { return cmp.Compare(a.Name, b.Name) })
	for i := range s.Epochs {
		s.Epochs[i].Peers = perEpoch[s.Epochs[i].Number]
	}
}

// status is how a peer is. The caller holds mu.
func (p *peers) status(q *peer, v epochs.View) PeerStatus {
	tx, rx := p.table.Pair(q.Name)
	s := PeerStatus{
		Name: q.Name, EpochTX: tx.Number, EpochRX: rx.Number, PostQuantum: q.postQuantum,
		Group: q.group, Lanes: q.lanes,
		Exchanged: q.exchanged, Expires: tx.Expires,
	}
	s.State = p.stateOf(q, v, tx, rx)
	if s.State != q.state {
		q.state, q.since = s.State, p.clock.Wall()
	}
	s.Since = q.since
	if q.lastErr != nil && !q.gone {
		s.LastError, s.ErrorKind = audit.Line(q.lastErr), kindOf(q.lastErr)
	}
	needs := p.needs(q, v.Target)
	if q.blocked && needs {
		s.Waits = fmt.Sprintf("keys of an older epoch, which has the number of epoch %d on the wire, have to drain first", v.Target)
	}
	if needs && !q.running && !q.gone {
		s.NextTry = clock.Wall(p.clock, q.nextTry)
	}
	return s
}

// stateOf names a peer's state. The caller holds mu.
func (p *peers) stateOf(q *peer, v epochs.View, tx, rx sadb.Held) string {
	switch {
	case q.gone:
		return StateLeaving
	case tx.ID != 0 && rx.ID != 0:
		return p.workingState(q, v, tx)
	case v.Target == 0:
		if q.expired {
			return StateExpired
		}
		return StateNoEpoch
	case tx.ID != 0 || rx.ID != 0:
		return StateHalf
	case q.lastErr != nil:
		return StateFailed
	case q.expired:
		return StateExpired
	}
	return StateNoKey
}

func (p *peers) workingState(q *peer, v epochs.View, tx sadb.Held) string {
	// There is a newer epoch that this node cannot read.
	behindNewest := v.Newest > v.Target && v.Err != nil
	switch {
	case q.confirmed == 0 && tx.Number >= v.Target && q.lastErr == nil:
		return StateChecking
	case q.confirmed != v.Target && q.lastErr != nil:
		return StateBehind
	case q.confirmed != v.Target && v.Target != 0:
		return StateMoving
	case v.Target == 0, behindNewest:
		return StateBehind
	case p.drains(q.Name, tx.Number):
		return StateDraining
	}
	return StateUp
}

// drains says whether keys of an older epoch are there still.
func (p *peers) drains(name string, number uint64) bool {
	for _, h := range p.table.Of(name).Groups {
		if h.Number < number {
			return true
		}
	}
	return false
}
