package keys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/auditlog"
)

// TestAuditOfALife has every step of an epoch's life in the log, with what wrapped it, and no key.
func TestAuditOfALife(t *testing.T) {
	dir := t.TempDir()
	b := newFixture(t)
	logs := map[string]*auditlog.Log{}
	for _, name := range []string{"a", "b"} {
		logs[name] = auditlog.Open(auditlog.Options{Path: filepath.Join(dir, name), Node: name,
			MaxSize: 1 << 20, Keep: 1})
	}
	b.options = func(o *Options) { o.Audit = logs[o.Node].Add }
	nodes := b.cluster("a", "b")
	for i := range 4 {
		b.up(uint64(i + 1))
		b.rotate(nodes[i%2])
	}
	b.up(5)
	var deks [][]byte
	for _, e := range b.store.epochs {
		dek, err := nodes[0].kek.Unwrap(t.Context(), e.Wrapped, e.Binding("test"))
		if err != nil {
			t.Fatal(err)
		}
		deks = append(deks, dek)
	}
	b.until("the first epoch is gone",
		func() bool { b.clock.skip(time.Second); return len(nodes[0].Status().Epochs) < 4 })
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
			if bytes.Contains(raw, dek) || bytes.Contains(raw, bytes.Trim(quoted, `"`)) ||
				bytes.Contains(raw, fmt.Appendf(nil, "%x", dek)) {
				t.Error("the audit log holds a key")
			}
		}
		for _, r := range readAudit(t, filepath.Join(dir, name)) {
			all[r.Op]++
			if r.Epoch != 0 && r.Op != audit.EventExchanged &&
				(r.KEK != "file:///test/kek" || r.KEKVersion != "1") {
				t.Errorf("it does not say what wrapped the epoch: %+v", r)
			}
			if r.Node != name || r.Outcome == "" || r.Time.IsZero() {
				t.Errorf("%+v", r)
			}
		}
	}
	for _, op := range []string{audit.OpCreate, audit.OpSwitch, audit.OpDestroy, audit.EventSeen,
		audit.EventElected} {
		if all[op] == 0 {
			t.Errorf("no record of %s: %v", op, all)
		}
	}
}

func readAudit(t *testing.T, path string) []audit.Record {
	t.Helper()
	records, err := auditlog.Read(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	return records
}
