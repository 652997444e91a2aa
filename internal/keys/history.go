package keys

import (
	"slices"
	"time"
)

// What an Event tells of.
const (
	EventSeen      = "seen"      // an epoch came up in the store
	EventWithdrawn = "withdrawn" // an epoch is gone from the store
	EventWrapped   = "wrapped"   // the KEK wrapped a new key
	EventCreated   = "created"   // this node published an epoch
	EventUnwrapped = "unwrapped" // the KEK was asked to unwrap an epoch's key
	EventForgotten = "forgotten" // an epoch's key was zeroed in this process's memory
	EventExchanged = "exchanged" // an exchange with a peer ended
	EventDestroyed = "destroyed" // keys were removed from the datapath
	EventDeleted   = "deleted"   // the leader removed an epoch from the store
	EventElected   = "elected"
	EventResigned  = "resigned"
	EventClockJump = "clock_jump"
	EventVMFork    = "vm_fork" // this virtual machine went back to a snapshot, or was copied: its keys were destroyed
	EventTTL       = "ttl_warning"
	EventExtended  = "ttl_extended" // keys in use were extended beyond their epoch's hard TTL
	EventVersion   = "kek_version"  // the KEK has another version than what wrapped an epoch's key
	EventRewrapped = "rewrapped"    // an epoch's key was wrapped again, by another version of the KEK
)

// Event is something that happened to keys. It never holds one.
type Event struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"`
	Epoch uint64    `json:"epoch,omitempty"`
	Peer  string    `json:"peer,omitempty"`
	// Outcome is "ok" or the kind of failure; empty for what cannot fail.
	Outcome string `json:"outcome,omitempty"`
	Detail  string `json:"detail,omitempty"`
	// KEK and KEKVersion are what wrapped the epoch's key, as far as this process has seen the epoch.
	KEK        string `json:"kek,omitempty"`
	KEKVersion string `json:"kekVersion,omitempty"`
	// Switched: packets to the peer are sealed in this epoch from now on.
	Switched bool `json:"switched,omitempty"`
	// Took is how long the KMS took.
	Took time.Duration `json:"tookNanos,omitempty"`
}

// historyMax is how many events a Manager remembers of epochs, and how many of peers.
const historyMax = 512

func (m *Manager) event(e Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recordLocked(e)
}

func (m *Manager) recordLocked(e Event) {
	e.Time = m.clock.Wall()
	if known, ok := m.wrappers[e.Epoch]; ok {
		e.KEK, e.KEKVersion = known.kek, known.version
	}
	of := &m.history[0]
	if e.Peer != "" {
		of = &m.history[1]
	}
	if len(*of) >= historyMax {
		*of = append((*of)[:0], (*of)[historyMax/4:]...)
	}
	*of = append(*of, e)
	if m.opt.Audit != nil {
		m.opt.Audit(e)
	}
}

// wrapper is what wrapped an epoch's key.
type wrapper struct{ kek, version string }

// wrappersMax is for how many epochs that is remembered: keys may outlive their epoch's object.
const wrappersMax = 64

// wrappedBy notes what wrapped an epoch's key, for its events. The caller holds mu.
func (m *Manager) wrappedBy(e Epoch) {
	m.wrappers[e.Number] = wrapper{e.KEK, e.KEKVersion}
	for number := range m.wrappers {
		if number+wrappersMax < m.highest {
			delete(m.wrappers, number)
		}
	}
}

// History is what happened lately, the oldest first. It begins with this process.
func (m *Manager) History() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := slices.Concat(m.history[0], m.history[1])
	slices.SortStableFunc(out, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return out
}
