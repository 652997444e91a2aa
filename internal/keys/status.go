package keys

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
)

// States of a peer.
const (
	// StateUp: both directions run on the newest epoch.
	StateUp = "up"
	// StateDraining: as up; keys of an older epoch are kept for packets on their way.
	StateDraining = "draining"
	// StateChecking: keys are in use that a former agent left; the peer was not asked yet whether it has the same.
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
	// StateExpired: the keys reached their hard TTL and there are no newer ones. Packets are dropped.
	StateExpired = "expired"
	// StateNoEpoch: there is no key, and no epoch that this node can read. Packets are dropped.
	StateNoEpoch = "no_epoch"
	// StateLeaving: the node is gone; its keys go after the drain.
	StateLeaving = "leaving"
)

// States are all states of a peer.
func States() []string {
	return []string{StateUp, StateDraining, StateChecking, StateMoving, StateBehind, StateHalf, StateNoKey, StateFailed, StateExpired, StateNoEpoch, StateLeaving}
}

// States of an epoch's key on this node.
const (
	DEKReadable = "readable"
	DEKWaiting  = "waiting"
	DEKFailed   = "failed"
	// DEKForgotten: not needed, so not kept.
	DEKForgotten = "forgotten"
	DEKExpired   = "expired"
)

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
	// NextRotation is when the newest epoch is old enough for the next; one that this node cannot read does not count.
	NextRotation time.Time `json:"nextRotation,omitzero"`
	// OldestKey is when the oldest key in the datapath was installed.
	OldestKey        time.Time     `json:"oldestKey,omitzero"`
	OldestKeySeconds int64         `json:"oldestKeySeconds"`
	Epochs           []EpochStatus `json:"epochs"`
	Peers            []PeerStatus  `json:"peers"`
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

// EpochStatus is an epoch in the store.
type EpochStatus struct {
	Epoch
	// DEK is one of the DEK… states.
	DEK string `json:"dek"`
	// Readable: this node holds the epoch's key.
	Readable bool `json:"readable"`
	// Error says why the key cannot be unwrapped, ErrorKind in one word.
	Error     string    `json:"error,omitempty"`
	ErrorKind string    `json:"errorKind,omitempty"`
	NextTry   time.Time `json:"nextTry,omitzero"`
	// Peers run on this epoch.
	Peers int `json:"peers"`
	// Extended is until when its keys in use are extended beyond Expires, so far; ExtendedMost until when they may be.
	Extended     time.Time `json:"extended,omitzero"`
	ExtendedMost time.Time `json:"extendedMost,omitzero"`
	// TTLPercent is how much of the hard TTL is over.
	TTLPercent int `json:"ttlPercent"`
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
	// PostQuantum and Group say how the last exchange agreed on keys; empty before this process had one.
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
	// Rotations is epochs that this node made, by reason.
	Rotations map[string]uint64 `json:"rotations"`
	// UnwrapErrors is failures to unwrap, by kind.
	UnwrapErrors map[string]uint64 `json:"unwrapErrors"`
	// Rewraps is how often this node wrapped an epoch's key again for a new version of the KEK.
	Rewraps uint64 `json:"rewraps"`
	// Kicks is how often packets without a key asked for an exchange.
	Kicks      uint64 `json:"kicks"`
	ClockJumps uint64 `json:"clockJumps"`
	// VMForks is how often this virtual machine was found to have gone back to a snapshot, or to have been copied.
	VMForks uint64 `json:"vmForks"`
	// Turned counts what was refused before a certificate was seen.
	Turned handshake.Turned `json:"turned"`
}

// Status tells how everything is now.
func (m *Manager) Status() Status {
	leader := m.opt.Leader.Holder()
	sum, turned := m.kernel.sum(), m.turned()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Status{
		Node: m.opt.Node, Ready: m.ready && m.listed, Epoch: m.target, Leader: leader, IsLeader: m.leader, KEK: m.opt.KEK.URL(),
		OldestKey: sum.oldest, Epochs: []EpochStatus{}, Peers: []PeerStatus{},
		Counters: Counters{
			Handshakes: maps.Clone(m.counters.Handshakes), Rotations: maps.Clone(m.counters.Rotations),
			UnwrapErrors: maps.Clone(m.counters.UnwrapErrors), Kicks: m.counters.Kicks, Rewraps: m.counters.Rewraps, ClockJumps: m.counters.ClockJumps, VMForks: m.counters.VMForks,
			Turned: turned,
		},
	}
	if m.opt.KMS != nil {
		s.KMS = m.opt.KMS.Health()
	}
	if e := m.epochs[m.target]; e != nil {
		s.TTLRatio = min(float64(m.clock.Boot()-e.born)/float64(max(e.deadline-e.born, 1)), 1)
	}
	if !sum.oldest.IsZero() {
		s.OldestKeySeconds = int64(max(m.clock.Wall().Sub(sum.oldest), 0).Seconds())
	}
	if newest := m.newest(); newest != nil {
		s.Newest, s.NextRotation = newest.Number, m.wall(newest.rotateAt)
		if open := m.open(); open != nil && m.unreadable(newest) {
			s.NextRotation = m.wall(open.rotateAt)
		}
	}
	perEpoch := map[uint64]int{}
	for _, p := range m.peers {
		status := m.peerStatus(p)
		perEpoch[status.EpochTX]++
		s.Peers = append(s.Peers, status)
	}
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int { return cmp.Compare(a.Name, b.Name) })
	for _, e := range m.sorted() {
		s.Epochs = append(s.Epochs, m.epochStatus(e, perEpoch[e.Number]))
	}
	if len(m.epochs) > 0 && m.newest() == nil && !m.onlyPast() {
		s.Problems = append(s.Problems, "epochs: by this node's clock all have reached their hard TTL: is the clock right, and does the leader make new ones?")
	}
	if text := m.ttlProblem(); text != "" {
		s.Problems = append(s.Problems, text)
	}
	if m.opt.AuditErr != nil {
		if err := m.opt.AuditErr(); err != nil {
			s.Problems = append(s.Problems, "audit: "+line(err))
		}
	}
	for _, what := range slices.Sorted(maps.Keys(m.problems)) {
		s.Problems = append(s.Problems, what+": "+m.problems[what])
	}
	return s
}

// wall is a moment of Clock.Boot on the wall clock.
func (m *Manager) wall(at time.Duration) time.Time {
	return clock.Wall(m.clock, at)
}

func (m *Manager) epochStatus(e *epoch, peers int) EpochStatus {
	s := EpochStatus{Epoch: e.Epoch, Peers: peers, Readable: e.dek != nil, DEK: DEKForgotten}
	s.TTLPercent = m.percent(e)
	if until, _ := m.extended(e); until != 0 {
		s.Extended, s.ExtendedMost = m.wall(until), m.wall(m.most(e, until))
	}
	switch {
	case e.dek != nil:
		s.DEK = DEKReadable
	case e.refused != nil:
		s.DEK, s.Error, s.ErrorKind = DEKFailed, line(e.refused), unwrapKind(e.refused)
	case !m.live(e):
		s.DEK, s.TTLPercent = DEKExpired, 100
	case e.err != nil:
		s.DEK, s.Error, s.ErrorKind, s.NextTry = DEKFailed, line(e.err), unwrapKind(e.err), m.wall(e.nextTry)
	case e.unwrapped.IsZero():
		s.DEK = DEKWaiting
	}
	return s
}

func (m *Manager) peerStatus(p *peer) PeerStatus {
	tx, rx := m.kernel.pair(p.Name)
	s := PeerStatus{
		Name: p.Name, EpochTX: tx.number, EpochRX: rx.number, PostQuantum: p.postQuantum, Group: p.group, Lanes: p.lanes,
		Exchanged: p.exchanged, Expires: tx.expires,
	}
	s.State = m.stateOf(p, tx, rx)
	if s.State != p.state {
		p.state, p.since = s.State, m.clock.Wall()
	}
	s.Since = p.since
	if p.lastErr != nil && !p.gone {
		s.LastError, s.ErrorKind = line(p.lastErr), kindOf(p.lastErr)
	}
	if p.blocked && m.needs(p) {
		s.Waits = fmt.Sprintf("keys of an older epoch, which has the number of epoch %d on the wire, have to drain first", m.target)
	}
	if m.needs(p) && !p.running && !p.gone {
		s.NextTry = m.wall(p.nextTry)
	}
	return s
}

// stateOf names a peer's state. The caller holds mu.
func (m *Manager) stateOf(p *peer, tx, rx held) string {
	switch {
	case p.gone:
		return StateLeaving
	case tx.id != 0 && rx.id != 0:
		return m.workingState(p, tx)
	case m.target == 0:
		if p.expired {
			return StateExpired
		}
		return StateNoEpoch
	case tx.id != 0 || rx.id != 0:
		return StateHalf
	case p.lastErr != nil:
		return StateFailed
	case p.expired:
		return StateExpired
	}
	return StateNoKey
}

func (m *Manager) workingState(p *peer, tx held) string {
	switch {
	case p.confirmed == 0 && tx.number >= m.target && p.lastErr == nil:
		return StateChecking
	case p.confirmed != m.target && p.lastErr != nil:
		return StateBehind
	case p.confirmed != m.target && m.target != 0:
		return StateMoving
	case m.target == 0, m.behindNewest():
		return StateBehind
	case m.drains(p.Name, tx.number):
		return StateDraining
	}
	return StateUp
}

// behindNewest: there is a newer epoch that this node cannot read.
func (m *Manager) behindNewest() bool {
	newest := m.newest()
	return newest != nil && newest.Number > m.target && newest.err != nil
}

// drains says whether keys of an older epoch are there still.
func (m *Manager) drains(name string, number uint64) bool {
	groups, _ := m.kernel.of(name)
	for _, h := range groups {
		if h.number < number {
			return true
		}
	}
	return false
}
