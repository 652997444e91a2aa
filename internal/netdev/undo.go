package netdev

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	stdmaps "maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"weft.dev/weft/internal/statefile"
)

// offloads are features of an interface as they were before Weft.
type offloads struct {
	NetNS    string          `json:"netns,omitempty"` // empty: the node's own
	Iface    string          `json:"interface"`
	Features map[string]bool `json:"features"`
}

// undoName is the file's name in the state directory.
const undoName = "undo.json"

// Undo is the file that remembers what a setting of the machine was before Weft changed it, so that
// cleanup can put it back. The first value noted for a key is the original and stays.
type Undo struct {
	path string
	// Damaged is where a file that could not be read was kept, "" if there was none.
	Damaged string `json:"-"`
	mu      sync.Mutex
	// Sysctls by path below /proc/sys, in the node's network namespace.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Offloads that were changed: a pod's under the name of its host side, an uplink's under its
	// own.
	Offloads map[string]offloads `json:"offloads,omitempty"`
	// Neighbors that the kernel was asked to keep fresh.
	Neighbors []netip.Addr `json:"neighbors,omitempty"`
}

// OpenUndo reads the file of a state directory, which may be missing.
func OpenUndo(stateDir string) (*Undo, error) { return openUndo(filepath.Join(stateDir, undoName)) }

func openUndo(path string) (*Undo, error) {
	u := &Undo{path: path, Sysctls: map[string]string{}, Offloads: map[string]offloads{}}
	if err := statefile.RemoveTemporaries(path); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return u, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	read := &Undo{path: path, Sysctls: map[string]string{}, Offloads: map[string]offloads{}}
	if err := json.Unmarshal(data, read); err == nil && read.Sysctls != nil &&
		read.Offloads != nil {
		return read, nil
	}
	u.Damaged, err = statefile.SetAside(path)
	return u, err
}

// save writes the file whole or not at all, also when the machine loses power. Callers hold u.mu.
func (u *Undo) save() error {
	if err := os.MkdirAll(filepath.Dir(u.path), 0o700); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	data, err := json.Marshal(u)
	if err != nil {
		return err
	}
	if err := statefile.Write(u.path, data); err != nil {
		return fmt.Errorf("write %s: %w", u.path, err)
	}
	return nil
}

// SetSysctl sets a value below /proc/sys, noting the one before.
func (u *Undo) SetSysctl(name, value string) error {
	path := "/proc/sys/" + name
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read sysctl %s: %w", name, err)
	}
	before := strings.TrimSpace(string(old))
	if before == value {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, noted := u.Sysctls[name]; !noted {
		u.Sysctls[name] = before
		if err := u.save(); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("write sysctl %s: %w", name, err)
	}
	return nil
}

// originals returns what was noted for an interface.
func (u *Undo) originals(key string) map[string]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return stdmaps.Clone(u.Offloads[key].Features)
}

// setOffloads replaces what is noted for an interface; no features means nothing to put back.
func (u *Undo) setOffloads(key string, noted offloads) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.Offloads[key]
	if before.NetNS == noted.NetNS && before.Iface == noted.Iface &&
		stdmaps.Equal(before.Features, noted.Features) {
		return nil
	}
	if len(noted.Features) == 0 {
		delete(u.Offloads, key)
	} else {
		u.Offloads[key] = noted
	}
	return u.save()
}

// NoteNeighbor remembers an address whose neighbour entry Weft made.
func (u *Undo) NoteNeighbor(addr netip.Addr) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Contains(u.Neighbors, addr) {
		return nil
	}
	u.Neighbors = append(u.Neighbors, addr)
	return u.save()
}

// RestoreSysctls puts every noted value back.
func (u *Undo) RestoreSysctls() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var failed error
	for name, value := range u.Sysctls {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("put back sysctl %s: %w", name, err))
		}
	}
	u.Sysctls = map[string]string{}
	return failed
}

// ForgetOffloads drops what was noted for an interface: there is nothing to put back any more.
func (u *Undo) ForgetOffloads(key string) error { return u.setOffloads(key, offloads{}) }

// RestoreOffloads puts the features of all interfaces back. A pod's may be gone, and then there is
// nothing to put back.
func (u *Undo) RestoreOffloads(log *slog.Logger) {
	u.mu.Lock()
	noted := stdmaps.Clone(u.Offloads)
	u.mu.Unlock()
	for key, o := range noted {
		if err := u.ApplyOffloads(key, o.NetNS, o.Iface, nil, RestoreOld); err != nil {
			log.Debug("put back offloads", "interface", key, "err", err)
		}
	}
}

// Aside lists where files that could not be read were kept, by this run and by those before.
func (u *Undo) Aside() []string { return statefile.Aside(u.path) }

// Remove removes the file, once all is put back.
func (u *Undo) Remove() error {
	if err := os.Remove(u.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
