package keys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/kek"
)

func openTestAudit(t *testing.T, path string) *AuditLog {
	t.Helper()
	return OpenAudit(AuditOptions{Path: path, Node: "a", MaxSize: 1 << 20, Keep: 3})
}

func readTestAudit(t *testing.T, path string) []AuditRecord {
	t.Helper()
	records, err := ReadAudit(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestAuditRecords(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		tell func(*AuditLog)
		want AuditRecord
	}{
		"create": {func(a *AuditLog) {
			a.Event(Event{Time: at, Event: EventCreated, Epoch: 3, KEK: "file:///k", KEKVersion: "v1", Outcome: "ok", Detail: ReasonAge})
		},
			AuditRecord{Op: "create", Epoch: 3, KEK: "file:///k", KEKVersion: "v1", Outcome: "ok", Detail: "age"}},
		"switch": {func(a *AuditLog) {
			a.Event(Event{Time: at, Event: EventExchanged, Epoch: 3, Peer: "b", Outcome: "ok", Switched: true})
		},
			AuditRecord{Op: "switch", Epoch: 3, Peer: "b", Outcome: "ok"}},
		"failed exchange": {func(a *AuditLog) {
			a.Event(Event{Time: at, Event: EventExchanged, Epoch: 3, Peer: "b", Outcome: "no_epoch"})
		},
			AuditRecord{Op: "exchanged", Epoch: 3, Peer: "b", Outcome: "no_epoch"}},
		"destroy": {func(a *AuditLog) { a.Event(Event{Time: at, Event: EventForgotten, Epoch: 3}) },
			AuditRecord{Op: "destroy", Epoch: 3, Outcome: "ok"}},
		"unwrap": {func(a *AuditLog) {
			a.Event(Event{Time: at, Event: EventUnwrapped, Epoch: 4, Outcome: "denied"}) // told by the KEK itself
			a.KEK(kek.AuditRecord{Time: at, Op: "unwrap", Cluster: "c", Epoch: 4, KEK: "awskms:///alias/weft", Version: "m", Outcome: "denied", Attempts: 2, Elapsed: time.Second, Error: "access denied"})
		}, AuditRecord{Op: "unwrap", Epoch: 4, KEK: "awskms:///alias/weft", KEKVersion: "m", Outcome: "denied", Attempts: 2, Latency: time.Second, Detail: "access denied"}},
		"probe": {func(a *AuditLog) {
			a.KEK(kek.AuditRecord{Time: at, Op: "wrap", Cluster: kek.ProbeCluster, KEK: "k", Outcome: "ok", Attempts: 1})
		},
			AuditRecord{Op: "probe", KEK: "k", Outcome: "ok", Attempts: 1}},
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

// TestAuditOnlyGrows has many files' worth of records: each stays whole under another name, the oldest goes.
func TestAuditOnlyGrows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a := OpenAudit(AuditOptions{Path: path, Node: "a", MaxSize: 1000, Keep: 2})
	const records = 200
	for i := range records {
		a.Event(Event{Event: EventSeen, Epoch: uint64(i + 1)})
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
	if last, err := ReadAudit(path, 3); err != nil || len(last) != 3 || last[2].Epoch != records {
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
	a.Event(Event{Event: EventSeen, Epoch: 2})
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
	a.Event(Event{Event: EventSeen, Epoch: 1})
	waitFor(t, "it says so", func() bool { return a.Err() != nil })
	for i := range auditQueue + 10 {
		a.Event(Event{Event: EventSeen, Epoch: uint64(i + 2)})
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it works again", func() bool { return a.Err() == nil })
	// Moved away by somebody: the next records go to a new file.
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	a.Event(Event{Event: EventElected})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	old, err := readAuditFile(path + ".moved")
	if err != nil || len(old) != auditQueue+1 || old[auditQueue].Op != AuditLost || old[auditQueue].Detail != "11 records found no room" {
		t.Errorf("%d records, the last %+v, %v", len(old), old[len(old)-1], err)
	}
	if got := readTestAudit(t, path); len(got) != 1 || got[0].Op != EventElected {
		t.Errorf("%+v", got)
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// TestAuditOfALife has every step of an epoch's life in the log, with what wrapped it, and no key.
func TestAuditOfALife(t *testing.T) {
	dir := t.TempDir()
	b := newBed(t)
	logs := map[string]*AuditLog{}
	for _, name := range []string{"a", "b"} {
		logs[name] = OpenAudit(AuditOptions{Path: filepath.Join(dir, name), Node: name, MaxSize: 1 << 20, Keep: 1})
	}
	b.options = func(o *Options) { o.Audit = logs[o.Node].Event }
	nodes := b.cluster("a", "b")
	for i := range 4 {
		b.up(uint64(i + 1))
		b.rotate(nodes[i%2])
	}
	b.up(5)
	var deks [][]byte
	for _, e := range b.store.epochs {
		dek, err := nodes[0].kek.Unwrap(t.Context(), e.Wrapped, e.binding("test"))
		if err != nil {
			t.Fatal(err)
		}
		deks = append(deks, dek)
	}
	b.until("the first epoch is gone", func() bool { b.clock.skip(time.Second); return len(nodes[0].Status().Epochs) < 4 })
	for _, n := range nodes {
		n.stop()
	}
	all := map[string]int{}
	for name, log := range logs {
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, dek := range deks {
			quoted, _ := json.Marshal(dek)
			if bytes.Contains(raw, dek) || bytes.Contains(raw, bytes.Trim(quoted, `"`)) || bytes.Contains(raw, fmt.Appendf(nil, "%x", dek)) {
				t.Error("the audit log holds a key")
			}
		}
		for _, r := range readTestAudit(t, filepath.Join(dir, name)) {
			all[r.Op]++
			if r.Epoch != 0 && r.Op != EventExchanged && (r.KEK != "file:///test/kek" || r.KEKVersion != "1") {
				t.Errorf("it does not say what wrapped the epoch: %+v", r)
			}
			if r.Node != name || r.Outcome == "" || r.Time.IsZero() {
				t.Errorf("%+v", r)
			}
		}
	}
	for _, op := range []string{AuditCreate, AuditSwitch, AuditDestroy, EventSeen, EventElected} {
		if all[op] == 0 {
			t.Errorf("no record of %s: %v", op, all)
		}
	}
}
