// Package audit says what a record of keys is, and remembers those of this process. None ever
// holds a key.
package audit

import (
	"strings"
	"time"
)

// What a Record of a node's own tells of.
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
	// EventVMFork: this virtual machine went back to a snapshot, or was copied: its keys were
	// destroyed.
	EventVMFork    = "vm_fork"
	EventTTL       = "ttl_warning"
	EventExtended  = "ttl_extended" // keys in use were extended beyond their epoch's hard TTL
	EventVersion   = "kek_version"  // the KEK has another version than what wrapped an epoch's key
	EventRewrapped = "rewrapped"    // an epoch's key was wrapped again, by another version of the KEK
)

// What is done with keys, as the log calls it. Other events have the same name there.
const (
	OpCreate  = "create"  // an epoch was published
	OpWrap    = "wrap"    // the KMS was asked to wrap an epoch's key
	OpUnwrap  = "unwrap"  // the KMS was asked to unwrap an epoch's key
	OpProbe   = "probe"   // the KMS was asked to wrap a throwaway key, to learn the KEK's version
	OpSwitch  = "switch"  // packets to a peer are sealed in this epoch from now on
	OpDestroy = "destroy" // keys, or an epoch, are gone
	// OpLost says how many records there was no room for while the file could not be written.
	OpLost = "records_lost"
)

// Record is something that happened to keys, or that was done with them.
type Record struct {
	Time time.Time `json:"time"`
	Node string    `json:"node,omitempty"`
	// Event is one of the Event… names, in the journal; Op is what the log calls it.
	Event string `json:"event,omitempty"`
	Op    string `json:"op,omitempty"`
	Epoch uint64 `json:"epoch,omitempty"`
	Peer  string `json:"peer,omitempty"`
	// KEK and KEKVersion are what wrapped the epoch's key, as far as this process has seen the
	// epoch.
	KEK        string `json:"kek,omitempty"`
	KEKVersion string `json:"kekVersion,omitempty"`
	// Outcome is "ok" or the kind of failure; empty in the journal for what cannot fail.
	Outcome string `json:"outcome,omitempty"`
	// Attempts and Latency are of the KMS, with all pauses between attempts.
	Attempts int           `json:"attempts,omitempty"`
	Latency  time.Duration `json:"latencyNanos,omitempty"`
	Detail   string        `json:"detail,omitempty"`
	// Switched: packets to the peer are sealed in this epoch from now on.
	Switched bool `json:"switched,omitempty"`
}

// Logged is a record as it stands in the log; false for what the KEK tells with more detail.
func (r Record) Logged() (Record, bool) {
	switch r.Event {
	case EventWrapped, EventUnwrapped:
		return Record{}, false
	case EventCreated:
		r.Op = OpCreate
	case EventDestroyed, EventForgotten, EventDeleted:
		r.Op = OpDestroy
	case EventExchanged:
		if r.Op = EventExchanged; r.Switched {
			r.Op = OpSwitch
		}
	case "": // of the KEK
	default:
		r.Op = r.Event
	}
	r.Event, r.Switched = "", false
	if r.Outcome == "" {
		r.Outcome = "ok"
	}
	return r, true
}

// Line is an error on one line, for a record's detail; "" for none.
func Line(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
