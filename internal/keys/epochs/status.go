package epochs

import (
	"maps"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
)

// States of an epoch's key on this node.
const (
	DEKReadable = "readable"
	DEKWaiting  = "waiting"
	DEKFailed   = "failed"
	// DEKForgotten: not needed, so not kept.
	DEKForgotten = "forgotten"
	DEKExpired   = "expired"
)

// Status is an epoch in the store.
type Status struct {
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
	// Extended is until when its keys in use are extended beyond Expires, so far; ExtendedMost
	// until when they may be.
	Extended     time.Time `json:"extended,omitzero"`
	ExtendedMost time.Time `json:"extendedMost,omitzero"`
	// TTLPercent is how much of the hard TTL is over.
	TTLPercent int `json:"ttlPercent"`
}

// Counters count since this process began.
type Counters struct {
	// Rotations is epochs that this node made, by reason.
	Rotations map[string]uint64 `json:"rotations"`
	// UnwrapErrors is failures to unwrap, by kind.
	UnwrapErrors map[string]uint64 `json:"unwrapErrors"`
	// Rewraps is how often this node wrapped an epoch's key again for a new version of the KEK.
	Rewraps uint64 `json:"rewraps"`
}

// Summary is how all epochs are.
type Summary struct {
	View
	IsLeader bool
	// NextRotation is when the newest epoch is old enough for the next; one that this node cannot
	// read does not count.
	NextRotation time.Time
	// TTLRatio is how much of the hard TTL of the epoch in use is over: 0 to 1.
	TTLRatio float64
	// Epochs are in the store, the newest first. Who runs on them is for the peers to say.
	Epochs   []Status
	Problems []string
	Counters Counters
}

// Summary is how everything is now. extended says which epochs' keys are in use beyond their
// hard TTL.
func (k *Keeper) Summary(extended map[uint64]Extension) Summary {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := Summary{View: k.view(), IsLeader: k.leader, Epochs: []Status{}, Counters: Counters{
		Rotations:    maps.Clone(k.counters.Rotations),
		UnwrapErrors: maps.Clone(k.counters.UnwrapErrors),
		Rewraps:      k.counters.Rewraps,
	}}
	if e := k.epochs[k.target]; e != nil {
		s.TTLRatio = min(float64(k.clock.Boot()-e.born)/float64(max(e.deadline-e.born, 1)), 1)
	}
	if newest := k.newest(); newest != nil {
		s.NextRotation = k.wall(newest.rotateAt)
		if open := k.open(); open != nil && k.unreadable(newest) {
			s.NextRotation = k.wall(open.rotateAt)
		}
	} else if len(k.epochs) > 0 && !k.onlyPast() {
		s.Problems = append(s.Problems,
			"epochs: by this node's clock all have reached their hard TTL: "+
				"is the clock right, and does the leader make new ones?")
	}
	for _, e := range k.sorted() {
		s.Epochs = append(s.Epochs, k.status(e, extended[e.Number]))
	}
	if text := k.ttlProblem(extended); text != "" {
		s.Problems = append(s.Problems, text)
	}
	return s
}

// wall is a moment of Clock.Boot on the wall clock.
func (k *Keeper) wall(at time.Duration) time.Time { return clock.Wall(k.clock, at) }

// status is how an epoch is. The caller holds mu.
func (k *Keeper) status(e *epoch, extended Extension) Status {
	s := Status{Epoch: e.Epoch, Readable: e.dek != nil, DEK: DEKForgotten, TTLPercent: k.percent(e)}
	if until := extended.Until; until != 0 {
		s.Extended, s.ExtendedMost = k.wall(until), k.wall(k.most(e, until))
	}
	switch {
	case e.dek != nil:
		s.DEK = DEKReadable
	case e.refused != nil:
		s.DEK, s.Error, s.ErrorKind = DEKFailed, audit.Line(e.refused), unwrapKind(e.refused)
	case !k.live(e):
		s.DEK, s.TTLPercent = DEKExpired, 100
	case e.err != nil:
		s.DEK, s.Error, s.ErrorKind = DEKFailed, audit.Line(e.err), unwrapKind(e.err)
		s.NextTry = k.wall(e.nextTry)
	case e.unwrapped.IsZero():
		s.DEK = DEKWaiting
	}
	return s
}
