package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/front/admin"
)

// TestNarrowPath puts a switch between nodes that carries less than their uplinks: the agents find
// out and name it.
func TestNarrowPath(t *testing.T) {
	l := useSealed(t)
	a := l.Node("a")
	must(t, wireNS(l), "ip", "link", "set", "p1", "mtu", "1400")
	t.Cleanup(func() {
		must(t, wireNS(l), "ip", "link", "set", "p1", "mtu", "1500")
		ensureStarted(t, a, true)
	})
	if err := a.RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the narrow path to be found", func() error {
		e, err := encryption(t.Context(), a)
		if err != nil {
			return err
		}
		for _, p := range e.Peers {
			if p.Node == "b" && p.Path != nil && p.Path.Fits == 1400 && p.Path.Configured == 1500 {
				return nil
			}
		}
		return fmt.Errorf("%+v", e.Peers)
	})
	eventually(t, "what to do about it", func() error {
		if problems := fmt.Sprint(status(t, a).Problems); !strings.Contains(problems, "node b") ||
			!strings.Contains(problems, "mtu: 1338") {
			return fmt.Errorf("problems: %s", problems)
		}
		return nil
	})
}

// TestKEKWithdrawn takes a node's right to read new keys away: it goes on with the keys that it
// has, nothing is lost or readable, it says what is wrong, and moves on by itself when the right is
// back.
func TestKEKWithdrawn(t *testing.T) {
	l := useSealed(t)
	a, b := l.Node("a"), l.Node("b")
	kek := filepath.Join(filepath.Dir(b.ConfigFile), "keys", "kek")
	before, err := os.ReadFile(kek)
	if err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := os.WriteFile(kek, before, 0o600); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(restore)
	watch := watchWire(t, l, podRules(l), nil)
	load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
	wrong := bytes.Clone(before)
	for i := range wrong {
		wrong[i] ^= 0xff
	}
	if err := os.WriteFile(kek, wrong, 0o600); err != nil {
		t.Fatal(err)
	}
	first := epochNow(t, l)
	epoch, err := admin.NewClient(a.Socket).RotateKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node to say that it cannot read the key", func() error {
		keys, err := admin.NewClient(b.Socket).Keys(t.Context())
		if err != nil {
			return err
		}
		for _, e := range keys.Epochs {
			if e.Number == epoch.Number && strings.Contains(e.Error, "key not found") {
				return nil
			}
		}
		return fmt.Errorf("%+v", keys.Epochs)
	})
	load.flowing(t, "with the old keys")
	if now := epochNow(t, l); now != first {
		t.Errorf("epoch %d is in use, though a node cannot read it", now)
	}
	restore()
	// It tries again at longer and longer intervals; a restart is the impatient operator's.
	if err := b.RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new epoch", func() error { return onEpoch(t.Context(), l, epoch.Number) })
	load.nothingLost(t)
	watch.allSealed(t, l)
}
