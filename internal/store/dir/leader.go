package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/statefile"
	"weft.dev/weft/internal/store"
)

// leaderFile is locked by the leader. The kernel drops the lock with the process.
const leaderFile = "leader.lock"

// Leader is the leadership of the one agent that makes and removes epochs in a
// directory. Two leaders at once would do no harm: an epoch is made exclusively.
type Leader struct {
	dir  *Dir
	node string

	mu   sync.Mutex
	file *os.File // nil: not elected
}

// Leader is the candidacy of a node.
func (d *Dir) Leader(node string) *Leader { return &Leader{dir: d, node: node} }

// Campaign blocks until this node is the leader or ctx ends. What keeps it from even
// trying, such as a directory that is away, is told to trouble.
func (l *Leader) Campaign(ctx context.Context, trouble func(error)) error {
	return store.Campaign(ctx, func(context.Context) (bool, error) { return l.try() }, trouble)
}

// IsLeader says whether this node still is. A lock file that was removed or replaced
// makes nobody leader.
func (l *Leader) IsLeader() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return false
	}
	if !statefile.IsAt(l.file, l.path()) {
		l.release()
		return false
	}
	return true
}

// Resign gives the leadership up, for another node to have it.
func (l *Leader) Resign() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release()
}

// Holder is the node that was elected last, "" when that is not known.
func (l *Leader) Holder() string {
	f, err := os.Open(l.path())
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 512))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (l *Leader) path() string { return filepath.Join(l.dir.path, keysDir, leaderFile) }

func (l *Leader) release() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// try takes the lock if nobody has it.
func (l *Leader) try() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil && statefile.IsAt(l.file, l.path()) {
		return true, nil
	}
	l.release()
	if _, err := l.dir.ensureDir(keysDir, secretDir); err != nil {
		return false, fmt.Errorf("open leader's lock: %w", err)
	}
	f, err := os.OpenFile(l.path(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, fmt.Errorf("open leader's lock: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil && statefile.IsAt(f, l.path()) {
		l.file = f
		return true, l.sign()
	}
	f.Close()
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return false, fmt.Errorf("lock %s: %w", l.path(), err)
	}
	return false, nil
}

// sign writes the leader's name into the file, for people.
func (l *Leader) sign() error {
	if l.Holder() == l.node {
		return nil
	}
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("sign leader's lock: %w", err)
	}
	if _, err := l.file.WriteAt([]byte(l.node+"\n"), 0); err != nil {
		return fmt.Errorf("sign leader's lock: %w", err)
	}
	return nil
}
