package dir

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"weft.dev/weft/internal/store"
)

// watching runs Watch until the test ends and gives what it delivers.
func watching(t *testing.T, d *Dir) <-chan *store.Snapshot {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	snapshots, done := make(chan *store.Snapshot, 100), make(chan error, 1)
	now := store.NewSnapshot()
	go func() {
		done <- d.Watch(ctx, func(delta store.Delta) { now = now.With(delta); snapshots <- now })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	return snapshots
}

// until takes snapshots until one has these nodes and an error with this text ("":
// no errors at all).
func until(t *testing.T, snapshots <-chan *store.Snapshot, errText string,
	nodes ...string) *store.Snapshot {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	var last *store.Snapshot
	for {
		select {
		case s := <-snapshots:
			last = s
			hasErr := slices.ContainsFunc(s.Errors,
				func(e store.ObjectError) bool { return strings.Contains(e.Error(), errText) })
			if slices.Equal(slices.Sorted(maps.Keys(s.Nodes)), nodes) &&
				(hasErr && errText != "" || errText == "" && len(s.Errors) == 0) {
				return s
			}
		case <-timeout:
			t.Fatalf("never saw nodes %q with error %q, but last %+v", nodes, errText, last)
		}
	}
}

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"a.yaml": node("a", 1)})
	d := open(t, dir)
	d.timing.poll = time.Hour // only events
	got := watching(t, d)
	until(t, got, "", "a")

	tree(t, dir, map[string]string{"b.yaml": node("b", 2)})
	until(t, got, "", "a", "b")
	must(t, os.Rename(dir+"/b.yaml", dir+"/b.txt"))
	until(t, got, "", "a")
	tree(t, dir, map[string]string{"later/c.yaml": node("c", 3)}) // a directory that was not there
	until(t, got, "", "a", "c")
	tree(t, dir, map[string]string{"later/d.yaml": node("d", 4)})
	until(t, got, "", "a", "c", "d")
	tree(t, dir, map[string]string{"a.yaml": "kind: ["})
	until(t, got, "a.yaml:1: not valid YAML", "a", "c", "d")
	tree(t, dir, map[string]string{"a.yaml": node("a", 1)})
	until(t, got, "", "a", "c", "d")
	must(t, os.Rename(dir+"/later", dir+"/.away"))
	until(t, got, "", "a")
	tree(t, dir, map[string]string{"later/e.yaml": node("e", 5)}) // replaces one that was watched
	until(t, got, "", "a", "e")
	tree(t, dir, map[string]string{"later/f.yaml": node("f", 6)})
	until(t, got, "", "a", "e", "f")

	must(t, d.PutEndpoint(endpoint("shop", "web", "a")))
	if s := until(t, got, "", "a", "e", "f"); s.Endpoints["shop/web"] == nil {
		until(t, got, "", "a", "e", "f")
	}
}

// TestWatchConfigMap changes files as the kubelet does: a link to a directory of
// links is put in place of another.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"..1/a.yaml": node("a", 1), "..2/a.yaml": node("b", 2)})
	must(t, os.Symlink("..1", dir+"/..data"))
	must(t, os.Symlink("..data/a.yaml", dir+"/a.yaml"))
	d := open(t, dir)
	d.timing.poll = time.Hour
	got := watching(t, d)
	until(t, got, "", "a")
	must(t, os.Symlink("..2", dir+"/..data_tmp"))
	must(t, os.Rename(dir+"/..data_tmp", dir+"/..data"))
	until(t, got, "", "b")
}

func TestWatchSurvivesLoss(t *testing.T) {
	dir := t.TempDir() + "/objects"
	d := open(t, dir)
	d.timing = timing{debounce: time.Millisecond, maxDelay: 10 * time.Millisecond,
		poll: 50 * time.Millisecond, retry: 10 * time.Millisecond}
	tree(t, dir, map[string]string{"a.yaml": node("a", 1)})
	got := watching(t, d)
	until(t, got, "", "a")
	must(t, os.Rename(dir, dir+".away"))
	until(t, got,
		"is missing: make it (mkdir -p "+dir+
			") or correct store.dir; the objects read last stay in use", "a")
	tree(t, dir, map[string]string{"b.yaml": node("b", 2)})
	until(t, got, "", "b")
	tree(t, dir, map[string]string{"c.yaml": node("c", 3)})
	until(t, got, "", "b", "c")
}

// TestPollSees has no events at all, as on a network file system.
func TestPollSees(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	d.timing.poll, d.timing.retry = 10*time.Millisecond, 10*time.Millisecond
	got := make(chan *store.Snapshot, 10)
	now := store.NewSnapshot()
	w := &watch{dir: d, changed: func(delta store.Delta) { now = now.With(delta); got <- now }}
	must(t, w.refresh())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.run(ctx) }()
	until(t, got, "")
	tree(t, dir, map[string]string{"a.yaml": node("a", 1)})
	until(t, got, "", "a")
	cancel()
	must(t, <-done)
}

// TestEndpointsAreReadAtOnce: what other agents publish does not wait for other changes, what
// people write does.
func TestEndpointsAreReadAtOnce(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"a.yaml": node("a", 1)})
	d := open(t, dir)
	must(t, d.PutEndpoint(endpoint("shop", "web", "a")))
	d.timing = timing{debounce: time.Hour, maxDelay: time.Hour, poll: time.Hour, retry: time.Hour}
	got := watching(t, d)
	until(t, got, "", "a")

	must(t, d.PutEndpoint(endpoint("shop", "db", "a")))
	if s := until(t, got, "", "a"); s.Endpoints["shop/db"] == nil {
		t.Errorf("read without the new endpoint: %+v", s.Endpoints)
	}
	// Not so when a person's change, which may be half written, is waited for.
	tree(t, dir, map[string]string{"b.yaml": node("b", 2)})
	must(t, d.PutEndpoint(endpoint("shop", "cache", "a")))
	select {
	case s := <-got:
		t.Errorf("read again at once: %+v", s)
	case <-time.After(20 * time.Millisecond):
	}
}

func TestUnchangedIsNotDelivered(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"a.yaml": node("a", 1), "bad.yaml": "x: 1"})
	calls := 0
	w := &watch{dir: open(t, dir), changed: func(store.Delta) { calls++ }}
	for range 3 {
		must(t, w.refresh())
		tree(t, dir, map[string]string{"a.yaml": node("a", 1)})
	}
	if calls != 1 {
		t.Errorf("delivered %d times", calls)
	}
}

// unwatched is for a reading that nobody watches.
func unwatched(string) {}

// TestWhenToRead has changes at moments, in ms, and looks when the directory is read after the last
// of them.
func TestWhenToRead(t *testing.T) {
	const debounce, most = 50, 500
	tm := timing{debounce: debounce * time.Millisecond, maxDelay: most * time.Millisecond}
	type change struct {
		at   int
		from origin
	}
	flood := func(from origin, first, last, apart int) (out []change) {
		for at := first; at <= last; at += apart {
			out = append(out, change{at, from})
		}
		return out
	}
	start := time.Now()
	for name, row := range map[string]struct {
		free    int // for endpoints
		changes []change
		want    int
	}{
		"a change by people": {0, []change{{10, fromPeople}}, 10 + debounce},
		"and another": {0, []change{{10, fromPeople}, {30, fromPeople}},
			30 + debounce},
		"changes by people that never end": {0, flood(fromPeople, 10, 600, 10), 10 + most},
		"an endpoint":                      {0, []change{{10, fromEndpoints}}, 10},
		"an endpoint too soon":             {200, []change{{10, fromEndpoints}}, 200},
		"endpoints that never end":         {0, flood(fromEndpoints, 10, 30000, 1), 10},
		"and begin too soon":               {200, flood(fromEndpoints, 10, 30000, 1), 200},
		"an identity":                      {0, []change{{10, fromIdentities}}, 10 + debounce},
		"identities that never end":        {0, flood(fromIdentities, 10, 30000, 1), 10 + debounce},
		"an identity and its endpoint": {0, []change{{10, fromIdentities}, {20, fromEndpoints}},
			20},
		"an endpoint and its identity": {200,
			[]change{{10, fromEndpoints}, {190, fromIdentities}}, 200},
		"endpoints behind people": {0,
			append([]change{{10, fromPeople}}, flood(fromEndpoints, 11, 30000, 1)...),
			10 + debounce},
		"people behind endpoints": {400,
			append(flood(fromEndpoints, 10, 390, 1), flood(fromPeople, 395, 30000, 1)...),
			395 + most},
	} {
		var next reading
		moment := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
		for _, c := range row.changes {
			next = tm.after(next, c.from, moment(c.at), moment(row.free))
		}
		if got := int(next.at.Sub(start).Milliseconds()); got != row.want {
			t.Errorf("%s: read at %d ms, want %d", name, got, row.want)
		}
	}
}

// TestEventsThatNeverCease: what is due is read although there is another event at every moment.
func TestEventsThatNeverCease(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	must(t, d.PutEndpoint(endpoint("shop", "web", "a")))
	d.timing = timing{debounce: time.Millisecond, maxDelay: time.Millisecond, poll: time.Hour,
		retry: time.Hour}
	calls := 0
	events := make(chan fsnotify.Event)
	w := &watch{dir: d, paths: map[string]bool{}, events: events,
		changed: func(store.Delta) { calls++ }}
	must(t, w.refresh())
	w.broken, w.took = false, time.Second
	w.read = time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.run(ctx) }()
	path := filepath.Join(dir, endpointsDir, "shop--web.yaml")
	must(t, d.PutEndpoint(endpoint("shop", "web", "b")))
	read := func() bool {
		d.readMu.Lock()
		defer d.readMu.Unlock()
		return d.history.Snapshot().Endpoints["shop/web"].Spec.NodeName == "b"
	}
	for end := time.Now().Add(2 * time.Minute); !read(); {
		if time.Now().After(end) {
			t.Fatal("not read")
		}
		events <- fsnotify.Event{Name: path, Op: fsnotify.Write}
	}
	cancel()
	must(t, <-done)
	if calls != 2 {
		t.Errorf("delivered %d times, want twice", calls)
	}
}

// TestWholeReadListsOnce: a whole reading watches each directory before it lists it, and lists each
// once.
func TestWholeReadListsOnce(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"a.yaml": node("a", 1), "sub/b.yaml": node("b", 2)})
	d := open(t, dir)
	var named []string
	must(t, d.readAll(func(sub string) {
		named = append(named, sub)
		// What comes now, before the listing, is read.
		tree(t, sub,
			map[string]string{filepath.Base(sub) +
				"-late.yaml": node(fmt.Sprint("late", len(named)), 10+len(named))})
	}))
	if want := []string{dir, filepath.Join(dir, "sub")}; !slices.Equal(named, want) {
		t.Errorf("named %q, want %q", named, want)
	}
	if got := slices.Sorted(maps.Keys(d.history.Snapshot().Nodes)); !slices.Equal(got,
		[]string{"a", "b", "late1", "late2"}) {
		t.Errorf("read nodes %q", got)
	}
}

// TestGivenUpHalfWay has a change that is read together with a file that takes a listing of all:
// the listing finds the change in its cache, and must tell of it all the same.
func TestGivenUpHalfWay(t *testing.T) {
	path := t.TempDir()
	d := open(t, path)
	changed, odd := filepath.Join(path, endpointsDir, "a.yaml"), filepath.Join(path, endpointsDir,
		"b.yaml")
	put := func(version string) {
		ep := endpoint("shop", "a", "n")
		ep.Metadata.Labels = map[string]string{"version": version}
		data, err := store.Encode(ep)
		if err == nil {
			err = os.WriteFile(changed, data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.ensureDir(endpointsDir, publicDir); err != nil {
		t.Fatal(err)
	}
	put("0")
	if err := d.readAll(unwatched); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nothing", odd); err != nil {
		t.Fatal(err)
	}
	for try := range 20 { // whichever of the two is read first
		put(fmt.Sprint("1.", try))
		if d.readSome(map[string]bool{changed: true, odd: true}) {
			t.Fatal("a link to nothing was read")
		}
		for p, c := range d.cache { // as if they had been read long after they were written
			c.read = time.Now().Add(time.Hour)
			d.cache[p] = c
		}
		if err := d.readAll(unwatched); err != nil {
			t.Fatal(err)
		}
		if got := d.history.Snapshot().Endpoints["shop/a"].Metadata.Labels["version"]; got != fmt.Sprint("1.", try) {
			t.Fatalf("version %s is in use after 1.%d was written", got, try)
		}
	}
}

// TestFileOfTwoNames has an endpoint's file under a second name elsewhere, of which no event tells.
func TestFileOfTwoNames(t *testing.T) {
	for name, link := range map[string]func(old, new string) error{"symbolic": os.Symlink, "hard": os.Link} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			d := open(t, path)
			file := filepath.Join(path, endpointsDir, "a.yaml")
			data, err := store.Encode(endpoint("shop", "a", "n"))
			for _, step := range []func() error{
				func() error { return err },
				func() error { _, err := d.ensureDir(endpointsDir, publicDir); return err },
				func() error { return os.WriteFile(file, data, 0o644) },
				func() error { return d.readAll(unwatched) },
			} {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if !d.readSome(map[string]bool{file: true}) {
				t.Error("a file of one name takes a listing of all")
			}
			if err := link(file, filepath.Join(path, "second.yaml")); err != nil {
				t.Fatal(err)
			}
			if err := d.readAll(unwatched); err != nil {
				t.Fatal(err)
			}
			if d.readSome(map[string]bool{file: true}) {
				t.Error("only one name of a file was read")
			}
		})
	}
}
