// Package epochs owns this node's epochs: it reads them in the store, has the KMS unwrap the
// keys that are needed and holds them in locked memory, makes the next epoch when one is due,
// and says which one peers should run on.
package epochs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/kek"
)

const (
	// tick is the longest time between two looks at everything.
	tick = 10 * time.Second
	// storeEvery is how often the store is read without being told of a change.
	storeEvery = 30 * time.Second
	retryMin   = time.Second
	retryMax   = 30 * time.Second
)

// KEK wraps and unwraps data-encryption keys. Every kek.KEK is one.
type KEK interface {
	Wrap(ctx context.Context, dek []byte, bind kek.Binding) (blob []byte, version string, err error)
	Unwrap(ctx context.Context, blob []byte, bind kek.Binding) ([]byte, error)
	// URL is the KEK's address without secrets.
	URL() string
}

// Peers are who runs on epochs. Only Count is asked under the Keeper's lock: it must take none.
type Peers interface {
	// Count is how many there are.
	Count() int
	// Confirmed are the epochs that they run on.
	Confirmed() map[uint64]bool
	// OldestInUse is the oldest epoch that one of them runs on or has keys of, 0 for none.
	OldestInUse() uint64
}

// SAs are the keys in the datapath, which may be asked under the Keeper's lock.
type SAs interface {
	// Sent is the highest counter of a lane in an epoch; false when there is nothing to seal with.
	Sent(epoch uint64) (counter uint64, found bool)
	// Highest is the highest number of an epoch that there are keys of, 0 for none.
	Highest() uint64
}

// Options are what a Keeper needs; all but Log and SeenFile must be given. Those that
// keys.Options has too are documented there.
type Options struct {
	Cluster string
	KEK     KEK
	Store   Store
	Leader  Leader
	Peers   Peers
	SAs     SAs

	MaxAge, HardTTL, ExtendTTL time.Duration
	Drain, Spread              time.Duration
	VersionEvery               time.Duration
	MaxPackets                 uint64
	SeenFile                   string

	Clock   clock.Clock
	Signal  *clock.Signal
	Journal *audit.Journal
	// Problem keeps what does not work, by what it is about, until it is told nil. It is called
	// under the Keeper's lock.
	Problem func(what string, err error)
	Log     *slog.Logger
}

// Keeper keeps a node's epochs. It is safe for concurrent use.
//
// Locks: making is held while an epoch is made, over calls of the KMS and the store, since two
// epochs must not be made for one reason. storeLock is held over calls of the store, since a
// listing that began before an epoch was made must not hide it. mu is held over no call but
// those of Options that say so. They are taken in this order.
type Keeper struct {
	opt   Options
	clock clock.Clock
	log   *slog.Logger

	work      sync.WaitGroup
	making    sync.Mutex
	storeLock sync.Mutex

	mu       sync.Mutex
	epochs   map[uint64]*epoch
	highest  uint64 // number of any epoch ever seen
	listed   bool   // the store was read once
	target   uint64 // the newest epoch that can be read here
	leader   bool
	failures int // to make an epoch, in a row
	taken    int // numbers that others took before this node, in a row
	unwraps  unwraps
	due      duties
	version  versions
	seen     *seen
	counters Counters
}

// duties is when, by Clock.Boot, what has to be done next.
type duties struct {
	store, storeRetry, create, version time.Duration
	// decide is until when an epoch that is due is put off for one that may turn out to be it, 0
	// for none.
	decide time.Duration
}

// New makes a Keeper. It does nothing until Step.
func New(opt Options) *Keeper {
	k := &Keeper{
		opt: opt, clock: opt.Clock, log: opt.Log, epochs: map[uint64]*epoch{},
		counters: Counters{UnwrapErrors: map[string]uint64{}, Rotations: map[string]uint64{}},
	}
	var err error
	if k.seen, err = openSeen(opt.SeenFile); err != nil {
		k.opt.Problem("first seen", err)
	}
	k.highest = k.seen.Opened
	return k
}

// Begin takes over which epochs the datapath has keys of, once that was read.
func (k *Keeper) Begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.highest = max(k.highest, k.opt.SAs.Highest())
}

// Step does what is due and returns when, by Clock.Boot, to look again. It belongs to one loop.
func (k *Keeper) Step(ctx context.Context) time.Duration {
	k.mu.Lock()
	store := k.clock.Boot() >= k.due.store
	k.mu.Unlock()
	if store {
		k.Reload()
	}
	k.saveSeen()
	next := min(k.unwrapDue(ctx), k.createDue(ctx), k.versionDue(ctx))
	k.mu.Lock()
	defer k.mu.Unlock()
	return min(next, k.due.store)
}

// Close waits for what is under way, whose context has to be over, and destroys the keys that
// are left in memory.
func (k *Keeper) Close() {
	k.work.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.epochs {
		e.forget()
	}
}

// StoreChanged says that the store's epochs may have changed.
func (k *Keeper) StoreChanged() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due.store = k.clock.Boot()
	k.opt.Signal.Poke()
}

// ClockJumped looks anew at epochs that seemed to have ended. Nothing that waits is measured by
// the wall clock.
func (k *Keeper) ClockJumped() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.epochs {
		if !k.live(e) {
			k.anchor(e)
		}
	}
	k.retarget()
}

// span is over how long the nodes spread what they all do at the same news: less than
// Options.Spread where there are few of them.
func (k *Keeper) span() time.Duration { return Span(k.opt.Spread, k.opt.Peers.Count()) }

// Span is how much of a longest time that many peers take to spread what they all do.
func Span(most time.Duration, peers int) time.Duration {
	const perNode = 20 * time.Millisecond
	return min(most, perNode*time.Duration(peers+1))
}

// View is what peers move by.
type View struct {
	// Listed: the store was read once.
	Listed bool
	// Target is the newest epoch that can be read here, Newest the newest there is; 0 for none.
	Target, Newest uint64
	// Readable: this node holds the newest's key. Err is why it does not; nil before it was tried.
	Readable bool
	Err      error
}

// View is how things are now.
func (k *Keeper) View() View {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.view()
}

func (k *Keeper) view() View {
	v := View{Listed: k.listed, Target: k.target}
	if newest := k.newest(); newest != nil {
		v.Newest, v.Readable, v.Err = newest.Number, newest.dek != nil, newest.err
	}
	return v
}

// Target is the newest epoch that can be read here, 0 for none.
func (k *Keeper) Target() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.target
}

// Readable are the live epochs whose keys this node holds, the newest first.
func (k *Keeper) Readable() []uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []uint64
	for _, e := range k.sorted() {
		if e.dek != nil && k.live(e) {
			out = append(out, e.Number)
		}
	}
	return out
}

// Until is when an epoch's keys expire that are installed now, by Clock.Boot; false if it is over.
func (k *Keeper) Until(number uint64) (time.Duration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.epochs[number]
	if e == nil || !k.live(e) {
		return 0, false
	}
	return k.until(e), true
}
