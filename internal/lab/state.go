package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/statefile"
)

// The phases of a lab, as written in lab.json and told by Status.
const (
	PhaseBuilding  = "building"
	PhaseUp        = "up"
	PhaseGoingDown = "going-down"
)

// state is lab.json: the write-ahead record from which Down can always work. Names
// are not in it because they follow from the description.
type state struct {
	Phase   string    `json:"phase"`
	Created time.Time `json:"created"`
	Binary  string    `json:"binary"`
	// SpecYAML is the description with the pods as they are now, in YAML because the
	// agents' raw configuration does not survive JSON's numbers.
	SpecYAML string `json:"spec"`
	// Agents are the running agents by node.
	Agents map[string]process `json:"agents"`
	// Pods are what the CNI plugin answered, by pod; absent until it has.
	Pods map[string]podRecord `json:"pods"`

	spec *Spec
}

// podRecord is what became of a pod.
type podRecord struct {
	HostIf string     `json:"hostIf"`
	IPv4   netip.Addr `json:"ipv4"`
	IPv6   netip.Addr `json:"ipv6"`
	MAC    string     `json:"mac"`
}

// store reads and writes one lab's state, shared between goroutines by the mutex and
// between processes by a lock file.
type store struct {
	name string
	mu   sync.Mutex
	// known is the description last read or written, with its text: with hundreds of
	// pods, reading YAML anew for each step would take longer than the step.
	known atomic.Pointer[knownSpec]
}

// knownSpec is a description and its text. It is shared: whoever changes a description
// puts a changed clone in its place.
type knownSpec struct {
	text string
	spec *Spec
}

// decode reads a description's text, unless it is the one last seen.
func (s *store) decode(text string) (*Spec, error) {
	if k := s.known.Load(); k != nil && k.text == text {
		return k.spec, nil
	}
	spec, err := unmarshalSpec([]byte(text))
	if err != nil {
		return nil, err
	}
	s.known.Store(&knownSpec{text, spec})
	return spec, nil
}

// encode is decode's reverse.
func (s *store) encode(spec *Spec) string {
	if k := s.known.Load(); k != nil && k.spec == spec {
		return k.text
	}
	text := string(spec.YAML())
	s.known.Store(&knownSpec{text, spec})
	return text
}

func (s *store) read() (*state, error) {
	data, err := os.ReadFile(filepath.Join(labdir.Dir(s.name), labdir.State))
	if errors.Is(err, os.ErrNotExist) {
		return nil, labdir.Missing(s.name)
	} else if err != nil {
		return nil, fmt.Errorf("read lab record: %w", err)
	}
	var st state
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, fmt.Errorf("read lab record %s: %w", s.name, err)
	}
	if st.spec, err = s.decode(st.SpecYAML); err != nil {
		return nil, err
	}
	if st.spec.Name != s.name {
		return nil, fmt.Errorf("lab record %s names the lab %q: remove it by hand", s.name,
			st.spec.Name)
	}
	if st.Agents == nil {
		st.Agents = map[string]process{}
	}
	if st.Pods == nil {
		st.Pods = map[string]podRecord{}
	}
	return &st, nil
}

// write replaces lab.json in one step.
func (s *store) write(st *state) error {
	st.SpecYAML = s.encode(st.spec)
	data, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("write lab record: %w", err)
	}
	return statefile.Write(filepath.Join(labdir.Dir(s.name), labdir.State), append(data, '\n'))
}

// update reads the state, lets change alter it and writes it back, alone among all
// goroutines and processes.
func (s *store) update(change func(*state) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lock, err := lockFile(filepath.Join(labdir.Dir(s.name), stateLock), true)
	if err != nil {
		return err
	}
	defer lock.Close()
	st, err := s.read()
	if err != nil {
		return err
	}
	if err := change(st); err != nil {
		return err
	}
	return s.write(st)
}

// errBusy says that another process holds a lock.
var errBusy = errors.New("is being built or removed by another process")

// claim makes the lab's directory and takes the lock that Up and Down hold while they work.
// The kernel frees it when its holder dies.
func (s *store) claim() (*os.File, error) {
	for {
		if err := os.MkdirAll(labdir.Dir(s.name), 0o755); err != nil {
			return nil, fmt.Errorf("create lab directory: %w", err)
		}
		path := filepath.Join(labdir.Dir(s.name), busyLock)
		lock, err := lockFile(path, false)
		if errors.Is(err, errBusy) {
			return nil, fmt.Errorf("lab %s %w: wait for it", s.name, errBusy)
		} else if errors.Is(err, os.ErrNotExist) {
			continue // its directory was removed in between
		} else if err != nil {
			return nil, err
		}
		// A Down that ended in between has unlinked the file whose lock we got.
		if statefile.IsAt(lock, path) {
			return lock, nil
		}
		lock.Close()
	}
}

func lockFile(path string, wait bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errBusy
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
