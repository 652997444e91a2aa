package auditlog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/audit"
)

func openTestAudit(t *testing.T, path string) *Log {
	t.Helper()
	return Open(Options{Path: path, Node: "a", MaxSize: 1 << 20, Keep: 3})
}

func readTestAudit(t *testing.T, path string) []audit.Record {
	t.Helper()
	records, err := Read(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestRecords(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		tell func(*Log)
		want audit.Record
	}{
		"create": {func(a *Log) {
			a.Add(audit.Record{Time: at, Event: audit.EventCreated, Epoch: 3, KEK: "file:///k",
				KEKVersion: "v1", Outcome: "ok", Detail: "age"})
		},
			audit.Record{Op: "create", Epoch: 3, KEK: "file:///k", KEKVersion: "v1", Outcome: "ok",
				Detail: "age"}},
		"switch": {func(a *Log) {
			a.Add(audit.Record{Time: at, Event: audit.EventExchanged, Epoch: 3, Peer: "b",
				Outcome: "ok", Switched: true})
		},
			audit.Record{Op: "switch", Epoch: 3, Peer: "b", Outcome: "ok"}},
		"failed exchange": {func(a *Log) {
			a.Add(audit.Record{Time: at, Event: audit.EventExchanged, Epoch: 3, Peer: "b",
				Outcome: "no_epoch"})
		},
			audit.Record{Op: "exchanged", Epoch: 3, Peer: "b", Outcome: "no_epoch"}},
		"destroy": {func(a *Log) { a.Add(audit.Record{Time: at, Event: audit.EventForgotten, Epoch: 3}) },
			audit.Record{Op: "destroy", Epoch: 3, Outcome: "ok"}},
		"unwrap": {func(a *Log) {
			a.Add(audit.Record{Time: at, Event: audit.EventUnwrapped, Epoch: 4,
				Outcome: "denied"}) // told by the KEK itself
			a.Add(audit.Record{
				Time: at, Op: audit.OpUnwrap, Epoch: 4, KEK: "awskms:///alias/weft",
				KEKVersion: "m", Outcome: "denied", Attempts: 2,
				Latency: time.Second, Detail: "access denied",
			})
		},
			audit.Record{Op: "unwrap", Epoch: 4, KEK: "awskms:///alias/weft", KEKVersion: "m",
				Outcome: "denied", Attempts: 2, Latency: time.Second, Detail: "access denied"}},
		"probe": {func(a *Log) {
			a.Add(audit.Record{Time: at, Op: audit.OpProbe, KEK: "k", Outcome: "ok", Attempts: 1})
		},
			audit.Record{Op: "probe", KEK: "k", Outcome: "ok", Attempts: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "deep", "audit.jsonl")
			a := openTestAudit(t, path)
			c.tell(a)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			c.want.Time, c.want.Node = at, "a"
			if got := readTestAudit(t, path); len(got) != 1 || got[0] != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
		})
	}
}

// TestAuditOnlyGrows has many files' worth of records: each stays whole under another name, the
// oldest goes.
func TestAuditOnlyGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a := Open(Options{Path: path, Node: "a", MaxSize: 1000, Keep: 2})
	const records = 200
	for i := range records {
		a.Add(audit.Record{Event: audit.EventSeen, Epoch: uint64(i + 1)})
		for len(a.wake) > 0 { // one by one, as in life
			time.Sleep(10 * time.Microsecond)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) > 3 {
		t.Errorf("files %v, %v", files, err)
	}
	got := readTestAudit(t, path)
	for i, r := range got {
		if want := uint64(records - len(got) + i + 1); r.Epoch != want {
			t.Fatalf("record %d is of epoch %d, want %d", i, r.Epoch, want)
		}
	}
	if last, err := Read(path, 3); err != nil || len(last) != 3 || last[2].Epoch != records {
		t.Errorf("the last 3: %v, %v", last, err)
	}
}

func TestAuditAfterCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	for _, torn := range []string{`{"op":"create","epoch":1}` + "\n", `{"op":"cre`} {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(torn); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	a := openTestAudit(t, path)
	a.Add(audit.Record{Event: audit.EventSeen, Epoch: 2})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got := readTestAudit(t, path); len(got) != 2 || got[0].Epoch != 1 || got[1].Epoch != 2 {
		t.Errorf("%+v", got)
	}
	if raw, _ := os.ReadFile(path); !strings.Contains(string(raw), `{"op":"cre`+"\n") {
		t.Errorf("what was there did not stay: %s", raw)
	}
}

// TestAuditFileAway keeps records until the file can be written, and says so meanwhile.
func TestAuditFileAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "audit.jsonl")
	a := openTestAudit(t, path)
	a.Add(audit.Record{Event: audit.EventSeen, Epoch: 1})
	waitFor(t, "it says so", func() bool { return a.Err() != nil })
	for i := range queueMax + 10 {
		a.Add(audit.Record{Event: audit.EventSeen, Epoch: uint64(i + 2)})
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it works again", func() bool { return a.Err() == nil })
	// Moved away by somebody: the next records go to a new file.
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	a.Add(audit.Record{Event: audit.EventElected})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	old, err := readFile(path + ".moved")
	if err != nil || len(old) != queueMax+1 || old[queueMax].Op != audit.OpLost ||
		old[queueMax].Detail != "11 records found no room" {
		t.Errorf("%d records, the last %+v, %v", len(old), old[len(old)-1], err)
	}
	if got := readTestAudit(t, path); len(got) != 1 || got[0].Op != audit.EventElected {
		t.Errorf("%+v", got)
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add((30 * time.Second)); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, (30 * time.Second))
		}
	}
}
