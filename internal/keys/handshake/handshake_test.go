package handshake

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestBothDirections(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 3, nil), b.node("y", 8, nil)
	y.listen()
	result := b.exchange(x, y, 1)
	b.settled(x, y, 1)
	want := Result{PeerNode: "y", Epoch: 1, Dialled: true, PostQuantum: true,
		Group: "X25519MLKEM768",
		TX:    x.get(true, "y", 1).id, RX: x.get(false, "y", 1).id, RekeyedTX: true,
		RekeyedRX: true,
		PeerLanes: 8}
	if result != want {
		t.Errorf("result %+v, want %+v", result, want)
	}
	if result.TX == result.RX {
		t.Error("both directions have one fingerprint")
	}

	// Nothing to do: nothing is touched.
	tx, rx := x.get(true, "y", 1), x.get(false, "y", 1)
	again := b.exchange(x, y, 1)
	if again.RekeyedTX || again.RekeyedRX || x.get(true, "y", 1) != tx ||
		x.get(false, "y", 1) != rx || again.TX != tx.id {
		t.Errorf("keys in order were replaced: %+v", again)
	}
	// Another epoch beside it, dialled by the other.
	x.listen()
	if other := b.exchange(y, x, 2); other.TX == again.RX || !other.RekeyedTX {
		t.Errorf("epoch 2: %+v", other)
	}
	b.settled(x, y, 2)
	b.settled(x, y, 1)
}

func TestOnlyTheBrokenDirectionIsRepaired(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 2, nil), b.node("y", 2, nil)
	y.listen()
	b.exchange(x, y, 1)
	good := x.get(true, "y", 1)
	// y rebooted only its receive half? No datapath does that, but the protocol must not care why.
	y.mu.Lock()
	delete(y.tx, key("x", 1))
	y.mu.Unlock()
	result := b.exchange(x, y, 1)
	if result.RekeyedTX || !result.RekeyedRX || x.get(true, "y", 1) != good {
		t.Errorf("result %+v", result)
	}
	b.settled(x, y, 1)
	// After a reboot nothing is left: both directions are new, since the peer's keys open nothing
	// there.
	y.mu.Lock()
	clear(y.tx)
	clear(y.rx)
	y.mu.Unlock()
	if result := b.exchange(x, y, 1); !result.RekeyedTX || !result.RekeyedRX {
		t.Errorf("after a reboot: %+v", result)
	}
	b.settled(x, y, 1)
}

func TestKeysAreZeroedAfterUse(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 2, nil), b.node("y", 2, nil)
	y.listen()
	b.exchange(x, y, 1)
	for _, n := range []*testNode{x, y} {
		if len(n.given) != 2 {
			t.Fatalf("%s got %d sets of keys", n.name, len(n.given))
		}
		for _, keys := range n.given {
			for _, lane := range keys.Lanes {
				if lane.Key != [32]byte{} || lane.Salt != [4]byte{} {
					t.Errorf("%s: lane %d of %v is still there", n.name, lane.Lane, keys)
				}
			}
		}
	}
}

func TestClassicalFallback(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, func(c *Config) { c.RequirePostQuantum = true })
	old := b.node("old", 1, nil)
	y.listen()
	x.listen()
	if result := b.exchange(x, y, 1); !result.PostQuantum {
		t.Errorf("x and y: %+v", result)
	}
	wait := map[bool]time.Duration{true: 200 * time.Millisecond, false: 30 * time.Second}
	// A peer from before ML-KEM offers X25519 only.
	for _, c := range []struct {
		to   *testNode
		want bool
	}{{x, true}, {y, false}} {
		conn, err := old.dialTLS(c.to, onlyX25519)
		if err == nil {
			// Who was refused hears of it at the first read, who was not hears nothing.
			_ = conn.SetReadDeadline(time.Now().Add(wait[c.want]))
			_, err = conn.Read(make([]byte, 1))
		}
		refused := err != nil && strings.Contains(err.Error(), "bad certificate")
		if refused == c.want {
			t.Errorf("X25519 only to %s: %v", c.to.name, err)
		}
		if c.want && conn.ConnectionState().CurveID != 29 {
			t.Errorf("agreed on %v", conn.ConnectionState().CurveID)
		}
	}
}

func TestMissingKey(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, nil)
	y.listen()
	if _, err := x.Exchange(t.Context(), y.peer(), 3); !errors.Is(err, ErrNoEpoch) ||
		errors.Is(err, ErrRefused) {
		t.Errorf("own key missing: %v", err)
	}
	x.dek[3] = dekOf(3)
	_, err := x.Exchange(t.Context(), y.peer(), 3)
	if !errors.Is(err, ErrNoEpoch) || !errors.Is(err, ErrRefused) {
		t.Errorf("peer's key missing: %v", err)
	}
	if strings.Contains(err.Error(), "secret-path") {
		t.Errorf("the peer was told what the KMS said: %v", err)
	}
	if len(x.given)+len(y.given) != 0 {
		t.Error("something was installed")
	}
}

func TestDifferentKeysAreFoundBeforeAnythingIsInstalled(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, nil)
	y.listen()
	x.dek[1] = dekOf(99)
	if _, err := x.Exchange(t.Context(), y.peer(), 1); !errors.Is(err, ErrKeyMismatch) {
		t.Errorf("%v", err)
	}
	for _, err := range y.errors() {
		if !errors.Is(err, ErrKeyMismatch) {
			t.Errorf("y: %v", err)
		}
	}
	if len(x.given)+len(y.given) != 0 {
		t.Error("something was installed")
	}
	x.dek[1] = []byte("short")
	if _, err := x.Exchange(t.Context(), y.peer(), 1); err == nil ||
		strings.Contains(err.Error(), "short") {
		t.Errorf("a key of the wrong size: %v", err)
	}
}

func TestWrongCalls(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, nil)
	y.addr = "127.0.0.1:1"
	for name, c := range map[string]struct {
		peer  Peer
		epoch uint64
		want  string
	}{
		"itself":      {x.peer(), 1, "itself"},
		"bad name":    {Peer{Name: "Y_"}, 1, "not a name"},
		"epoch 0":     {y.peer(), 0, "from 1"},
		"no address":  {Peer{Name: "y"}, 1, "no address"},
		"unknown":     {Peer{Name: "z", Addresses: []string{"127.0.0.1:1"}}, 1, "not a known node"},
		"unreachable": {y.peer(), 1, "cannot be reached"},
	} {
		if _, err := x.Exchange(t.Context(), c.peer, c.epoch); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := New(Config{Node: "x", TrustDomain: "a b"}); err == nil {
		t.Error("a bad trust domain is taken")
	}
	if _, _, err := New(Config{Node: "x", TrustDomain: "a"}); err == nil {
		t.Error("a config without its parts is taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Exchange(ctx, y.peer(), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// The second of several addresses.
	stop := y.listen()
	defer stop()
	if _, err := x.Exchange(t.Context(),
		Peer{Name: "y", Addresses: []string{"127.0.0.1:1", y.addr}}, 1); err != nil {
		t.Error(err)
	}
}
