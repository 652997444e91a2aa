package keys

import (
	"errors"
	"log/slog"
	"testing"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys/sadb"
)

// unreadable is a datapath whose keys cannot be read while it says so.
type unreadable struct {
	sadb.Datapath
	yes bool
}

func (d *unreadable) Lanes() int { return 1 }

func (d *unreadable) SAs() ([]esp.SAStatus, error) {
	if d.yes {
		return nil, errors.New("the map cannot be read")
	}
	return nil, nil
}

func (d *unreadable) Sealing() ([]esp.Sealing, error) { return nil, nil }

// TestUnreadableIsRetriedInTime: who wants a reading sooner gets it, but not while readings fail.
func TestUnreadableIsRetriedInTime(t *testing.T) {
	c := newTestClock(t)
	dp := &unreadable{}
	m := &Manager{clock: c, table: sadb.New(dp, c, 1<<20), problems: newProblems(slog.Default())}
	m.peers = &peers{clock: c, table: m.table}
	if !m.load() {
		t.Fatal("it cannot be read")
	}
	if m.reread(m.table.Loaded()); m.nextRead() > c.Boot() {
		t.Errorf("the next reading is put off by %s", m.nextRead()-c.Boot())
	}
	dp.yes = true
	before := c.Boot()
	if m.load() {
		t.Fatal("it can be read")
	}
	// Measured from the last good reading, which is long ago.
	if m.reread(m.table.Loaded()); m.nextRead() < before+retryMin {
		t.Errorf("read again %s after it failed, want %s", m.nextRead()-before, retryMin)
	}
	dp.yes = false
	if !m.load() {
		t.Fatal("it cannot be read")
	}
	if m.reread(m.table.Loaded()); m.nextRead() > c.Boot() {
		t.Errorf("the next reading is put off by %s, though readings are good again",
			m.nextRead()-c.Boot())
	}
}
