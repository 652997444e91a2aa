package ranges

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weft.dev/weft/internal/statefile"
)

// FileName is the memory's file in the agent's state directory.
const FileName = "ranges.json"

// content is what the file holds.
type content struct {
	Entries []Entry      `json:"entries"`
	Sealed  []netip.Addr `json:"sealed,omitempty"`
}

// Open reads the memory in a state directory. A memory is returned also with an error, which is
// about a file that cannot be read: it is moved aside, and the memory is a fresh one.
func Open(stateDir string) (*Memory, error) {
	m := &Memory{path: filepath.Join(stateDir, FileName),
		now:     func() time.Time { return time.Now().Truncate(time.Second) },
		entries: map[netip.Prefix]Entry{}, sealed: map[netip.Addr]time.Time{}}
	leftErr := statefile.RemoveTemporaries(m.path)
	data, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		m.fresh = true
		return m, leftErr
	}
	var c content
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		m.fresh = true
		_, asideErr := statefile.SetAside(m.path)
		return m, errors.Join(fmt.Errorf("the memory of the cluster's ranges cannot be read, and begins anew from the datapath's maps: %w", err), asideErr, leftErr)
	}
	for _, e := range c.Entries {
		if e.Prefix.IsValid() {
			e.Prefix = e.Prefix.Masked()
			m.entries[e.Prefix] = e
		}
	}
	for _, a := range c.Sealed {
		m.sealed[a] = time.Time{}
	}
	m.saved = string(data)
	return m, leftErr
}

// save writes the file, whole or not at all, if it would change.
func (m *Memory) save() error {
	if m.fresh {
		return nil
	}
	c := content{Entries: slices.SortedFunc(maps.Values(m.entries), byPrefix),
		Sealed: m.sealedList()}
	data, err := json.MarshalIndent(c, "", " ")
	if err == nil && string(data) == m.saved {
		return nil
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(m.path), 0o700)
	}
	if err == nil {
		err = statefile.Write(m.path, data)
	}
	if err != nil {
		return fmt.Errorf("remember the cluster's ranges: %w", err)
	}
	m.saved = string(data)
	return nil
}
