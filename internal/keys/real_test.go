package keys

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/sadb"
	"weft.dev/weft/internal/store"
	"weft.dev/weft/internal/store/dir"
)

// dirFixture is a fixture whose nodes have their epochs in a directory of objects, wrapped by a key
// file.
type dirFixture struct {
	*fixture
	path, keyFile string
}

// newDirFixture makes one; more sets further options of each node.
func newDirFixture(t *testing.T, more func(*Options, *dir.Dir)) *dirFixture {
	t.Helper()
	path, keyFile := t.TempDir(), filepath.Join(t.TempDir(),
		"kek") // before the fixture, whose nodes end first then
	b := &dirFixture{newFixture(t), path, keyFile}
	if _, err := kek.CreateKeyFile(b.keyFile); err != nil {
		t.Fatal(err)
	}
	b.options = func(o *Options) {
		objects, err := dir.Open(b.path)
		if err != nil {
			t.Fatal(err)
		}
		key, err := kek.Open(t.Context(), "file://"+b.keyFile, kek.Options{Node: o.Node})
		if err != nil {
			t.Fatal(err)
		}
		o.Store, o.KEK = epochs.NewStore(objects), key
		more(o, objects)
	}
	return b
}

// watch tells nodes of every change in the directory, until the test ends.
func (b *dirFixture) watch(nodes []*node) {
	for _, n := range nodes {
		objects, _ := dir.Open(b.path)
		go objects.Watch(b.t.Context(),
			func(store.Delta) { n.StoreChanged() }) //nolint:errcheck // ends with the test
	}
}

// TestOnADirectory has two managers on one directory of objects, with a key file and the lock of
// the leader.
func TestOnADirectory(t *testing.T) {
	b := newDirFixture(t, func(o *Options, objects *dir.Dir) { o.Leader = objects.Leader(o.Node) })
	nodes := b.cluster("a", "b")
	b.watch(nodes)
	b.up(1)
	for i := range 3 {
		b.rotate(nodes[i%2])
		b.up(uint64(i + 2))
	}
	leaders := 0
	for _, n := range nodes {
		s := n.Status()
		if s.IsLeader {
			leaders++
		}
		if s.Leader == "" || len(s.Problems) > 0 || s.Epochs[0].KEKVersion == "" {
			t.Errorf("%+v", s)
		}
	}
	if leaders != 1 {
		t.Errorf("%d leaders", leaders)
	}
	b.sound()
}

// TestNothingIsLeftInMemory looks for an epoch's key in this process's memory after it was
// forgotten, and in every file that was written. What is looked for is kept inverted, not to be
// found itself.
func TestNothingIsLeftInMemory(t *testing.T) {
	b := newDirFixture(t, func(*Options, *dir.Dir) {})
	nodes := b.cluster("a", "b")
	b.until("both run on the first epoch", func() bool {
		for _, n := range nodes {
			n.StoreChanged()
		}
		return nodes[0].Status().Settled() && nodes[1].Status().Settled()
	})
	inverted := invertedDEK(t, nodes[0].Manager)
	if !inMemory(t, inverted) {
		t.Error("the key in use was not found: this test looks in the wrong place")
	}
	for _, n := range nodes {
		n.stop()
	}
	if inMemory(t, inverted) {
		t.Error("the key is in memory still")
	}
	list, err := filepath.Glob(filepath.Join(b.path, "keys", "*"))
	if err != nil || len(list) == 0 {
		t.Fatal("no file of an epoch")
	}
	for _, name := range list {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if found(data, inverted) {
			t.Errorf("%s holds the key", name)
		}
	}
}

func invertedDEK(t *testing.T, m *Manager) []byte {
	t.Helper()
	dek, err := m.epochs.DEK(t.Context(), m.epochs.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer clear(dek)
	out := make([]byte, 32)
	for i, b := range dek {
		out[i] = ^b
	}
	return out
}

// found says whether data holds the inverse of inverted.
func found(data, inverted []byte) bool {
	first := ^inverted[0]
	for {
		i := bytes.IndexByte(data, first)
		if i < 0 || len(data)-i < len(inverted) {
			return false
		}
		data = data[i:]
		same := true
		for j, b := range inverted {
			if data[j] != ^b {
				same = false
				break
			}
		}
		if same {
			return true
		}
		data = data[1:]
	}
}

// inMemory reads all of this process's memory that may be written to.
func inMemory(t *testing.T, inverted []byte) bool {
	t.Helper()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Skipf("no map of this process: %v", err)
	}
	defer maps.Close()
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skipf("no memory of this process: %v", err)
	}
	defer memory.Close()
	hit := false
	buffer := make([]byte, 1<<20)
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var from, to int64
		var rights string
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &rights); n != 3 ||
			!strings.HasPrefix(rights, "rw") || to-from > 512<<20 {
			continue
		}
		for at := from; at < to; at += int64(len(buffer)) - 32 {
			n, err := memory.ReadAt(buffer[:min(int64(len(buffer)), to-at)], at)
			if n == 0 && err != nil && err != io.EOF {
				break // not backed by anything
			}
			hit = hit || found(buffer[:n], inverted)
			clear(buffer[:n])
		}
	}
	return hit
}

func TestDerivedKeysAreZeroedAfterHandover(t *testing.T) {
	b := newFixture(t)
	kept := make(chan *esp.SA, 256)
	b.options = func(o *Options) { o.Datapath = keeper{o.Datapath, kept} }
	b.cluster("a", "b")
	b.up(1)
	for range len(kept) {
		if sa := <-kept; sa.Key != [32]byte{} || sa.Salt != [4]byte{} {
			t.Error("a key was not zeroed")
		}
	}
}

// keeper keeps what it is given, and does not zero it.
type keeper struct {
	sadb.Datapath
	kept chan *esp.SA
}

func (k keeper) InstallSA(sa *esp.SA) error {
	copied := *sa
	err := k.Datapath.InstallSA(&copied)
	k.kept <- sa
	return err
}

// TestKeyFileReplaced has a new key file wrap the live epoch again, on a directory of objects: the
// old key can go.
func TestKeyFileReplaced(t *testing.T) {
	b := newDirFixture(t, func(o *Options, _ *dir.Dir) { o.VersionEvery = time.Minute })
	nodes := b.cluster("a", "b")
	b.watch(nodes)
	b.up(1)
	old := newestVersion(nodes[0])
	if err := os.Rename(b.keyFile, b.keyFile+"."+old); err != nil {
		t.Fatal(err)
	}
	if _, err := kek.CreateKeyFile(b.keyFile); err != nil {
		t.Fatal(err)
	}
	b.until("both nodes know the epoch as wrapped again", func() bool {
		b.clock.skip(10 * time.Second)
		return newestVersion(nodes[0]) != old && newestVersion(nodes[1]) != old
	})
	if err := os.Remove(b.keyFile + "." + old); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		n.stop()
		n.start()
	}
	b.until("both read it by the new key", func() bool {
		for _, n := range nodes {
			if dekState(n, 1) != epochs.DEKReadable {
				return false
			}
		}
		return true
	})
	b.rotate(nodes[0])
	b.up(2)
	b.sound()
}
