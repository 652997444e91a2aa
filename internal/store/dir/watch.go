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

// Watch tells of changes once they have stopped for a moment, since what people write may be half written, and more may
// follow. Endpoints are read at once: agents write them, each whole, and no node takes a packet of a pod's before it
// has read its endpoint.
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
	var quiet <-chan time.Time // fires when changes have stopped
	var since time.Time        // first change by people not read yet
	poll := time.NewTimer(w.pollAfter())
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events:
			if !relevant(e) {
				continue
			}
			w.note(e)
			switch sub := filepath.Base(filepath.Dir(e.Name)); {
			case sub == endpointsDir && since.IsZero():
				quiet = time.After(w.pause())
			case sub == identitiesDir && quiet == nil: // its first endpoint follows
				quiet = time.After(w.dir.timing.debounce)
			case sub != endpointsDir && sub != identitiesDir:
				quiet, since = w.dir.timing.wait(since, time.Now())
			}
			continue
		case <-w.errs:
			// Events were lost: look.
			w.whole = true
			quiet, since = w.dir.timing.wait(since, time.Now())
			continue
		case <-quiet:
		case <-poll.C:
			w.whole = true
		}
		quiet, since = nil, time.Time{}
		w.refresh() //nolint:errcheck // delivered with the delta
		poll.Reset(w.pollAfter())
	}
}

// wait is a timer for the quiet after a change at now, the first unread one being
// at since (zero: this one).
func (t timing) wait(since, now time.Time) (<-chan time.Time, time.Time) {
	if since.IsZero() {
		since = now
	}
	left := t.maxDelay - now.Sub(since)
	return time.After(max(min(t.debounce, left), 0)), since
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

// pause is how long from now the directory is not to be read for an endpoint's sake: reading is to take no more
// than a fifth of the time, unless the directory is so large that this would be too long.
func (w *watch) pause() time.Duration {
	return max(time.Until(w.read.Add(min(5*w.took, w.dir.timing.maxDelay))), 0)
}

// note remembers what an event was about. Agents write files that are whole, each object in one of its own; after any other
// event everything is looked at.
func (w *watch) note(e fsnotify.Event) {
	path := e.Name
	switch filepath.Dir(path) {
	case filepath.Join(w.dir.path, endpointsDir), filepath.Join(w.dir.path, identitiesDir):
		// A file that was moved away is one that came somewhere else.
		if isYAML(path) && !ignored(filepath.Base(path)) && !e.Has(fsnotify.Rename) {
			w.paths[path] = true
			return
		}
	}
	w.whole = true
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
		// Watched before it is read: what changes in between is an event.
		w.broken = !w.cover()
		if err := d.readAll(); err != nil {
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
	errs := append([]store.ObjectError{{File: w.dir.path, Msg: why}}, w.dir.history.ErrorsOf(w.dir.path)...)
	return store.Delta{Errors: map[string][]store.ObjectError{w.dir.path: errs}}
}

// cover watches the directory and its sub-directories. Those that were replaced
// meanwhile are watched anew.
func (w *watch) cover() bool {
	if w.notify == nil || w.notify.Add(w.dir.path) != nil {
		return false
	}
	_, dirs, _ := listOne(w.dir.path)
	ok := true
	for _, sub := range dirs {
		if err := w.notify.Add(sub.path); err != nil {
			ok = false
		}
	}
	return ok
}
