package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// expeditedRCU makes the kernel's grace periods short, at the price of an interrupt to every busy
// CPU (Documentation/admin-guide/kernel-parameters: rcupdate.rcu_expedited). It is the whole
// machine's.
const expeditedRCU = "/sys/kernel/rcu_expedited"

// expediteNote is a file in the state directory that is there while the setting is ours to put
// back.
const expediteNote = "rcu_expedited"

// expedite shortens grace periods while an endpoint is attached or detached. Each TCX link waits
// for one with the kernel's network lock held: 10 to 20 ms, three times for a pod. The kernel
// itself expedites those of its own network changes (synchronize_net) for the same reason.
//
// Who finds the setting made leaves it to whoever made it: an administrator, or another agent of
// this machine. So it may end while one still needs it, which costs that one time only; and when an
// agent is killed with grace periods expedited, it stays until the same agent starts again.
type expedite struct {
	setting, note string
	mu            sync.Mutex
	users         int
	ours          bool // we set it, so we clear it
}

// open puts back what a process that was killed with grace periods expedited has left.
func (h *expedite) open(setting, stateDir string) error {
	h.setting, h.note = setting, filepath.Join(stateDir, expediteNote)
	if _, err := os.Stat(h.note); err != nil {
		return nil // not ours
	}
	return h.restore()
}

// begin returns the function that restores normal grace periods. Where the setting cannot be
// changed, all just takes longer.
func (h *expedite) begin() func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users++
	if h.users == 1 {
		now, err := os.ReadFile(h.setting)
		h.ours = err == nil && bytes.Equal(bytes.TrimSpace(now), []byte("0")) && h.set() == nil
	}
	return h.end
}

// set makes the note first: a process killed in between leaves at worst a note of nothing.
func (h *expedite) set() error {
	if err := os.MkdirAll(filepath.Dir(h.note), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(h.note, nil, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(h.setting, []byte("1"), 0o644); err != nil {
		// Nothing to put back, which would fail as well, at each start and in cleanup.
		return errors.Join(err, removeIfExists(h.note))
	}
	return nil
}

func (h *expedite) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users--
	if h.users == 0 && h.ours {
		// Nothing depends on it: a failure leaves the kernel a little more eager, and the note.
		_ = h.restore()
	}
}

func (h *expedite) restore() error {
	if err := os.WriteFile(h.setting, []byte("0"), 0o644); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("put back %s: %w", h.setting, err)
	}
	return removeIfExists(h.note)
}
