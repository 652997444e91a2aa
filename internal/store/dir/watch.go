package dir

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"weft.dev/weft/internal/store"
)

// timing is how soon what happens after what.
type timing struct {
	debounce time.Duration // quiet time after a change before it is read
	maxDelay time.Duration // for changes that do not stop
	poll     time.Duration // a look without any event, as a net
	retry    time.Duration // the same while the directory is away or cannot be watched
}

var defaultTiming = timing{
	debounce: 50 * time.Millisecond,
	maxDelay: 500 * time.Millisecond,
	poll:     30 * time.Second,
	retry:    time.Second,
}

// Watch tells of changes once they have stopped for a moment, since what people write may be half
// written, and more may follow. Endpoints are read at once: agents write them, each whole, and no
// node takes a packet of a pod's before it has read its endpoint.
//
// It implements store.Store; it returns nil when ctx ends. The error is for a
// directory that cannot be read at the start. If that happens later, the objects
// read last stay and an error of the directory says why, until it is back.
func (d *Dir) Watch(ctx context.Context, changed func(store.Delta)) error {
	w := &watch{dir: d, changed: changed, paths: map[string]bool{}}
	if err := w.open(); err != nil {
		slog.Warn("cannot watch the directory of objects, looking at it every second instead",
			"dir", d.path, "err", err)
	}
	defer w.close()
	if err := w.refresh(); err != nil {
		return err
	}
	return w.run(ctx)
}

type watch struct {
	dir     *Dir
	changed func(store.Delta)
	follow  *store.Follower // nil before the first listing
	away    string          // why the directory could not be read the last time
	read    time.Time       // when it was read last
	took    time.Duration   // and how long that was
	broken  bool            // the directory is away or not watched
	paths   map[string]bool // files that events named since, if they are all there is to read
	whole   bool            // else

	notify *fsnotify.Watcher // nil: cannot be had
	events <-chan fsnotify.Event
	errs   <-chan error
}

func (w *watch) open() error {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	w.notify, w.events, w.errs = n, n.Events, n.Errors
	return nil
}

func (w *watch) close() {
	if w.notify != nil {
		w.notify.Close()
	}
	if w.follow != nil {
		w.dir.readMu.Lock()
		defer w.dir.readMu.Unlock()
		w.follow.Close()
	}
}

func (w *watch) run(ctx context.Context) error {
	var next reading
	var due <-chan time.Time
	poll := time.NewTimer(w.pollAfter())
	defer poll.Stop()
	for {
		was := next.at
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events:
			if !relevant(e) {
				continue
			}
			from := w.origin(e)
			w.note(e, from)
			next = w.dir.timing.after(next, from, time.Now(), w.free())
		case <-w.errs:
			// Events were lost: look.
			w.whole = true
			next = w.dir.timing.after(next, fromPeople, time.Now(), w.free())
		case <-due:
		case <-poll.C:
			w.whole = true
			next.at = time.Time{}
		}
		// Looked at here, not left to the timer: events that never cease must not come before it
		// for long.
		if left := time.Until(next.at); left > 0 {
			if next.at != was {
				due = time.After(left)
			}
			continue
		}
		next, due = reading{}, nil
		w.refresh() //nolint:errcheck // delivered with the delta
		poll.Reset(w.pollAfter())
	}
}

// origin says who writes what an event is about.
type origin int

const (
	fromPeople    origin = iota
	fromEndpoints        // agents, each file whole, each object in one of its own
	fromIdentities
)

func (w *watch) origin(e fsnotify.Event) origin {
	switch filepath.Dir(e.Name) {
	case filepath.Join(w.dir.path, endpointsDir):
		return fromEndpoints
	case filepath.Join(w.dir.path, identitiesDir):
		return fromIdentities
	}
	return fromPeople
}

// reading is when the directory is read next; zero: when something happens.
type reading struct {
	at    time.Time
	since time.Time // the first change by people that is not read yet
}

// after is when to read next after a change, which may not be before free for an endpoint's sake.
// However many changes follow, what is not read yet waits for maxDelay at most for each of the two.
func (t timing) after(next reading, from origin, now, free time.Time) reading {
	sooner := func(at time.Time) {
		if next.at.IsZero() || at.Before(next.at) {
			next.at = at
		}
	}
	switch {
	case from == fromPeople:
		if next.since.IsZero() {
			next.since = now
		}
		next.at = now.Add(t.debounce)
		sooner(next.since.Add(t.maxDelay))
	case !next.since.IsZero(): // waits for what people write
	case from == fromEndpoints && free.After(now):
		sooner(free)
	case from == fromEndpoints:
		sooner(now)
	case next.at.IsZero(): // an identity: its first endpoint follows
		next.at = now.Add(t.debounce)
	}
	return next
}

func (w *watch) pollAfter() time.Duration {
	if w.broken {
		return w.dir.timing.retry
	}
	return w.dir.timing.poll
}

// relevant leaves out temporary files: their renaming is an event of its own. A
// hidden name may be the ..data of a ConfigMap.
func relevant(e fsnotify.Event) bool {
	return !strings.HasSuffix(filepath.Base(e.Name), ".tmp")
}

// free is from when on the directory may be read for an endpoint's sake: reading is to take no more
// than a fifth of the time, unless the directory is so large that this would be too long.
func (w *watch) free() time.Time {
	return w.read.Add(min(5*w.took, w.dir.timing.maxDelay))
}

// note remembers what an event was about: a file that an agent wrote. After any other event
// everything is looked at.
func (w *watch) note(e fsnotify.Event, from origin) {
	// A file that was moved away is one that came somewhere else.
	if from == fromPeople || !isYAML(e.Name) || ignored(filepath.Base(e.Name)) ||
		e.Has(fsnotify.Rename) {
		w.whole = true
		return
	}
	w.paths[e.Name] = true
}

// refresh reads what may have changed and delivers what is new.
func (w *watch) refresh() error {
	w.dir.readMu.Lock()
	delta, err := w.readLocked()
	w.dir.readMu.Unlock()
	if err != nil && w.follow == nil {
		return err
	}
	if delta.Listed || len(delta.Changes) > 0 || len(delta.Errors) > 0 {
		w.changed(delta)
	}
	return err
}

// readLocked is what is new. A directory that is away changes nothing but its own errors.
func (w *watch) readLocked() (store.Delta, error) {
	d := w.dir
	whole := w.whole || w.broken || w.follow == nil
	start := time.Now()
	if whole || d.readable() != nil || !d.readSome(w.paths) {
		w.broken = false
		if err := d.readAll(w.cover); err != nil {
			w.broken = true
			return w.tellAway(err.Error() + "; the objects read last stay in use"), err
		}
	}
	w.read = time.Now()
	w.took = w.read.Sub(start)
	w.whole = false
	clear(w.paths)
	if w.follow == nil {
		w.follow = d.history.Follow().Keep()
	}
	delta := w.follow.Take()
	if w.away != "" {
		w.away = ""
		delta.Errors[d.path] = d.history.ErrorsOf(d.path)
	}
	return delta, nil
}

func (w *watch) tellAway(why string) store.Delta {
	if w.away == why || w.follow == nil {
		return store.Delta{}
	}
	w.away = why
	errs := append([]store.ObjectError{{File: w.dir.path, Msg: why}},
		w.dir.history.ErrorsOf(w.dir.path)...)
	return store.Delta{Errors: map[string][]store.ObjectError{w.dir.path: errs}}
}

// cover watches a directory that is about to be listed: what changes in between is an event. One
// that was replaced meanwhile is watched anew.
func (w *watch) cover(dir string) {
	if w.notify == nil || w.notify.Add(dir) != nil {
		w.broken = true
	}
}
