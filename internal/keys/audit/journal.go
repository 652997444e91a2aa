package audit

import (
	"slices"
	"sync"
	"time"
)

const (
	// journalMax is how many records a Journal remembers of epochs, and how many of peers.
	journalMax = 512
	// wrappersMax is for how many epochs it remembers what wrapped them: keys may outlive their
	// epoch's object.
	wrappersMax = 64
)

// wrapper is what wrapped an epoch's key.
type wrapper struct{ kek, version string }

// Journal remembers what happened lately, from the start of this process. It is safe for
// concurrent use, and calls nothing but its clock and its sink, so that it may be told of
// things under any lock.
type Journal struct {
	now  func() time.Time
	sink func(Record)

	mu sync.Mutex
	// epochs and peers are apart, since many peers must not hide the epochs.
	epochs, peers []Record
	wrappers      map[uint64]wrapper
}

// NewJournal makes a Journal. The sink is told of every record, and must not block; nil is none.
func NewJournal(now func() time.Time, sink func(Record)) *Journal {
	return &Journal{now: now, sink: sink, wrappers: map[uint64]wrapper{}}
}

// Add takes a record over, with the time and with what wrapped its epoch.
func (j *Journal) Add(r Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.Time = j.now()
	if known, ok := j.wrappers[r.Epoch]; ok {
		r.KEK, r.KEKVersion = known.kek, known.version
	}
	of := &j.epochs
	if r.Peer != "" {
		of = &j.peers
	}
	if len(*of) >= journalMax {
		*of = append((*of)[:0], (*of)[journalMax/4:]...)
	}
	*of = append(*of, r)
	if j.sink != nil {
		j.sink(r)
	}
}

// WrappedBy notes what wrapped an epoch's key, for its records. What is known of epochs far
// below highest is forgotten.
func (j *Journal) WrappedBy(epoch uint64, kek, version string, highest uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wrappers[epoch] = wrapper{kek, version}
	for number := range j.wrappers {
		if number+wrappersMax < highest {
			delete(j.wrappers, number)
		}
	}
}

// Recent is what happened lately, the oldest first.
func (j *Journal) Recent() []Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := slices.Concat(j.epochs, j.peers)
	slices.SortStableFunc(out, func(a, b Record) int { return a.Time.Compare(b.Time) })
	return out
}
