// Package secmem holds secrets in memory of their own: outside of Go's heap, where
// they would be copied and left behind, locked so that they are never swapped out,
// left out of core dumps, and zeroed when they are released.
package secmem

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrReleased is returned for a secret that is no longer there.
var ErrReleased = errors.New("the secret was released")

// Secret is a few bytes in pages of their own. It is safe for concurrent use.
type Secret struct {
	mu     sync.RWMutex
	pages  []byte // nil: released
	size   int
	locked error
}

// New makes a secret of zeros. It fails only when there is no memory at all: where
// the pages cannot be locked (RLIMIT_MEMLOCK), Locked says so.
func New(size int) (*Secret, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate secret: size is %d: want at least 1", size)
	}
	page := unix.Getpagesize()
	length := (size + page - 1) / page * page
	pages, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate secret: %w", err)
	}
	s := &Secret{pages: pages, size: size}
	if err := unix.Mlock(pages); err != nil {
		s.locked = fmt.Errorf("lock memory of secret (raise RLIMIT_MEMLOCK): %w", err)
	}
	for _, advice := range []int{unix.MADV_DONTDUMP, unix.MADV_WIPEONFORK} {
		if err := unix.Madvise(pages, advice); err != nil && s.locked == nil {
			s.locked = fmt.Errorf("protect memory of secret: %w", err)
		}
	}
	return s, nil
}

// Random makes a secret of random bytes.
func Random(size int) (*Secret, error) {
	s, err := New(size)
	if err != nil {
		return nil, err
	}
	if _, err := rand.Read(s.pages[:size]); err != nil {
		s.Release()
		return nil, fmt.Errorf("draw secret: %w", err)
	}
	return s, nil
}

// Take makes a secret of data, which is zeroed in any case.
func Take(data []byte) (*Secret, error) {
	defer clear(data)
	s, err := New(len(data))
	if err != nil {
		return nil, err
	}
	copy(s.pages, data)
	return s, nil
}

// Locked says why the memory may be swapped out or dumped, nil if it cannot.
func (s *Secret) Locked() error { return s.locked }

// Use calls f with the secret, which f must not keep. Release waits for f.
func (s *Secret) Use(f func(secret []byte) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.pages == nil {
		return ErrReleased
	}
	return f(s.pages[:s.size:s.size])
}

// Copy is a copy on Go's heap, for the caller to zero as soon as it can.
func (s *Secret) Copy() ([]byte, error) {
	var out []byte
	err := s.Use(func(secret []byte) error {
		out = append(make([]byte, 0, len(secret)), secret...)
		return nil
	})
	return out, err
}

// Release zeroes the secret and gives its memory back. It may be called again.
func (s *Secret) Release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pages == nil {
		return
	}
	clear(s.pages)
	unix.Munlock(s.pages) //nolint:errcheck // the pages go away in the next line
	unix.Munmap(s.pages)  //nolint:errcheck // nothing can be done, and they hold zeros
	s.pages = nil
}

// String gives nothing away.
func (s *Secret) String() string { return "secret" }

// GoString gives nothing away either.
func (s *Secret) GoString() string { return "secret" }

// ProtectProcess keeps this process's memory out of core dumps and away from other
// processes without CAP_SYS_PTRACE.
func ProtectProcess() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make process undumpable: %w", err)
	}
	return nil
}
