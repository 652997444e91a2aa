package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/store/dir"
)

// TestKeysStayInTheirPlace greps real agents' memory, and every file that they wrote, for the keys
// of epochs: those that are live are in locked pages that no core dump has, and nowhere else; older
// ones are nowhere at all.
func TestKeysStayInTheirPlace(t *testing.T) {
	l := useSealed(t)
	through := agents(l)[0]
	deks := map[uint64][]byte{}
	for range 4 {
		rotate(t, l, through)
		readDEKs(t, l, through, deks)
	}
	live := map[uint64]bool{}
	eventually(t, "old epochs are forgotten", func() error {
		clear(live)
		for _, n := range agents(l) {
			s, err := keysOf(t.Context(), n)
			if err != nil {
				return err
			}
			if len(s.Epochs) > 2 {
				return fmt.Errorf("%s has %d epochs", n.Name, len(s.Epochs))
			}
			for _, e := range s.Epochs {
				live[e.Number] = true
			}
		}
		return nil
	})
	for _, n := range agents(l) {
		undumpable(t, n)
		found := 0
		for _, region := range memoryOf(t, n.PID()) {
			for number, dek := range deks {
				switch {
				case !bytes.Contains(region.data, dek):
				case live[number] && region.secret:
					found++
				default:
					t.Errorf("the key of epoch %d (live: %v) is in the memory of agent %s, in %s",
						number, live[number], n.Name, region.name)
				}
			}
		}
		if found != len(live) {
			t.Errorf("agent %s has %d of %d live keys in its locked memory: this test looks in the wrong place", n.Name, found, len(live))
		}
	}
	for _, n := range agents(l) {
		cfg, err := config.Load(n.ConfigFile)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{l.Dir(), cfg.StateDir(), cfg.RunDir()} {
			grepFiles(t, path, deks)
		}
	}
}

// readDEKs unwraps the epochs of the store as an agent does.
func readDEKs(t *testing.T, l *lab.Lab, n *lab.Node, into map[uint64][]byte) {
	t.Helper()
	cfg, err := config.Load(n.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := kek.Open(t.Context(), cfg.Keys.KEK, kek.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	objects, err := dir.Open(l.ObjectsDir())
	if err != nil {
		t.Fatal(err)
	}
	epochs, err := objects.Epochs()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range epochs {
		dek, err := key.Unwrap(t.Context(), e.Spec.Wrapped,
			kek.Binding{Cluster: cfg.Keys.Cluster, Epoch: e.Spec.Number,
				Created: e.Spec.Created.Time, Expires: e.Spec.Expires.Time})
		if err != nil {
			t.Fatal(err)
		}
		into[e.Spec.Number] = dek
	}
}

// undumpable holds an agent to leave no core dump. What is not dumpable belongs to root in /proc,
// whoever runs it, and has no core limit.
func undumpable(t *testing.T, n *lab.Node) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_CORE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur != 0 || limit.Max != 0 {
		t.Errorf("agent %s may leave a core of %d bytes", n.Name, limit.Max)
	}
}

// region is a part of a process's memory that may be written to.
type region struct {
	name string
	// secret: locked, and left out of core dumps.
	secret bool
	data   []byte
}

// memoryOf reads a process's memory.
func memoryOf(t *testing.T, pid int) []region {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	var out []region
	var from, to int64
	writable := false
	var name string
	for lines := bufio.NewScanner(bytes.NewReader(maps)); lines.Scan(); {
		line := lines.Text()
		var rights string
		var begin, end int64
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &rights); n == 3 && len(rights) == 4 {
			from, to, writable, name = begin, end, strings.HasPrefix(rights, "rw"), line
			continue
		}
		flags, ok := strings.CutPrefix(line, "VmFlags:")
		if !ok || !writable {
			continue
		}
		r := region{name: name, secret: strings.Contains(flags, " lo") &&
			strings.Contains(flags, " dd")}
		r.data = readMemory(memory, from, to)
		out = append(out, r)
	}
	return out
}

// readMemory reads what of a range was ever touched.
func readMemory(memory *os.File, from, to int64) []byte {
	var out []byte
	const step = 1 << 20
	for at := from; at < to; at += step {
		part := make([]byte, min(step, to-at))
		n, _ := memory.ReadAt(part, at)
		if part = part[:n]; len(bytes.TrimLeft(part, "\x00")) > 0 {
			out = append(out, part...)
		}
	}
	return out
}

// grepFiles looks for keys in files, as they are and as text.
func grepFiles(t *testing.T, path string, deks map[uint64][]byte) {
	t.Helper()
	err := filepath.WalkDir(path, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for number, dek := range deks {
			for _, form := range [][]byte{dek, []byte(hex.EncodeToString(dek)),
				[]byte(base64.StdEncoding.EncodeToString(dek))} {
				if bytes.Contains(data, form) {
					t.Errorf("%s holds the key of epoch %d", path, number)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
