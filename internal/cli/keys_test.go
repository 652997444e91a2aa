package cli

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
)

func TestTurnedLine(t *testing.T) {
	last := netip.MustParseAddr("192.0.2.7")
	for name, c := range map[string]struct {
		turned handshake.Turned
		want   string
	}{
		"nobody": {handshake.Turned{}, ""},
		"by the kernel": {handshake.Turned{Filtered: 5, LastUnknown: last},
			"5 packets from addresses that no node has, dropped by the kernel, the last from 192.0.2.7"},
		"by the agent": {handshake.Turned{Unknown: 2, LastUnknown: last},
			"2 connections from addresses that no node has, the last from 192.0.2.7"},
		"by both": {handshake.Turned{Filtered: 5, Unknown: 2, LastUnknown: last},
			"5 packets from addresses that no node has, dropped by the kernel, 2 connections from addresses that no node has, the last from 192.0.2.7"},
		"no unknown source": {handshake.Turned{Silent: 1, Evicted: 4},
			"1 that said nothing, 4 to make room"},
	} {
		if got := turnedLine(&c.turned); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// keeper is an agent with keys; peer b is on the newest epoch after a few looks, unless it is
// stuck.
type keeper struct {
	fake
	mu    sync.Mutex
	epoch uint64
	looks int
	stuck bool
	fails error
	// extended is until when the epoch is extended.
	extended time.Time
}

func (k *keeper) Keys(context.Context) (*keys.Status, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	s := &keys.Status{
		Node: "a", Ready: true, Epoch: k.epoch, Newest: k.epoch, Leader: "b",
		KEK: "file:///etc/weft/kek", NextRotation: now.Add(90 * time.Minute),
		Epochs: []epochs.Status{{Epoch: epochs.Epoch{Number: k.epoch, Created: now,
			Expires: now.Add(72 * time.Hour)}, DEK: epochs.DEKReadable, Readable: true, Peers: 1}},
		Peers: []keys.PeerStatus{{Name: "b", State: keys.StateUp, EpochTX: k.epoch,
			EpochRX: k.epoch, PostQuantum: true, Group: "X25519MLKEM768"}},
	}
	if !k.extended.IsZero() {
		s.Epochs[0].Extended, s.Epochs[0].ExtendedMost = k.extended, k.extended.Add(time.Hour)
	}
	if k.looks--; k.looks >= 0 || k.stuck {
		s.Peers[0].State, s.Peers[0].EpochTX, s.Peers[0].LastError = keys.StateBehind, k.epoch-1, "the peer cannot be reached"
	}
	return s, nil
}

func (k *keeper) RotateKeys(context.Context) (*epochs.Epoch, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails != nil {
		return nil, k.fails
	}
	k.epoch++
	k.looks = 2
	return &epochs.Epoch{Number: k.epoch, Expires: time.Now().Add(72 * time.Hour)}, nil
}

func (k *keeper) KeyHistory(context.Context) ([]audit.Record, error) {
	return []audit.Record{{Event: audit.EventSeen, Epoch: 1},
		{Event: audit.EventExchanged, Epoch: 1, Peer: "b", Outcome: "ok", Detail: "new keys"}}, nil
}

var _ admin.KeysBackend = (*keeper)(nil)

func TestKeys(t *testing.T) {
	runDir := t.TempDir()
	agent := &keeper{epoch: 6}
	serve(t, runDir, "", agent)
	code, out, errOut := weft(runDir, "keys", "status")
	if code != cmdutil.ExitOK || !strings.Contains(out, "b     up     -      6/6") ||
		!strings.Contains(out, "in 1h30m") || !strings.Contains(out, "6      readable") {
		t.Errorf("status: %d %s\n%s", code, errOut, out)
	}
	if code, out, _ = weft(runDir, "keys", "status", "-o", "json"); code != cmdutil.ExitOK ||
		!strings.Contains(out, `"epochTX": 6`) {
		t.Errorf("status as JSON: %d\n%s", code, out)
	}
	if code, out, errOut = weft(runDir, "keys", "rotate"); code != cmdutil.ExitOK ||
		!strings.Contains(out, "epoch 7 is made") {
		t.Errorf("rotate: %d %s\n%s", code, errOut, out)
	}
	if code, out, errOut = weft(runDir, "keys", "rotate", "--wait"); code != cmdutil.ExitOK ||
		!strings.Contains(out, "epoch 8 is in use with every other node") {
		t.Errorf("rotate --wait: %d %s\n%s", code, errOut, out)
	}
	agent.extended = time.Now().Add(5*time.Minute + 20*time.Second)
	if code, out, _ = weft(runDir, "keys", "status"); code != cmdutil.ExitOK ||
		!strings.Contains(out, "EXTENDED beyond its hard TTL: in use for another 5m") ||
		!strings.Contains(out, "at most 1h5m") {
		t.Errorf("status, extended: %d\n%s", code, out)
	}
	agent.stuck = true
	code, _, errOut = weft(runDir, "keys", "rotate", "--wait", "--timeout", "1s")
	if code != cmdutil.ExitFailed ||
		!strings.Contains(errOut, "not in use with b (behind) the peer cannot be reached") {
		t.Errorf("rotate with a stuck peer: %d %s", code, errOut)
	}
	agent.fails = context.DeadlineExceeded
	if code, _, errOut = weft(runDir, "keys", "rotate"); code != cmdutil.ExitFailed ||
		!strings.Contains(errOut, "deadline") {
		t.Errorf("rotate that fails: %d %s", code, errOut)
	}
	if code, out, _ = weft(runDir, "keys", "history", "--last", "1"); code != cmdutil.ExitOK ||
		strings.Contains(out, "seen") ||
		!strings.Contains(out, "exchanged  1      b     ok       new keys") {
		t.Errorf("history: %d\n%s", code, out)
	}
}

func TestKeysOfAnAgentWithoutAny(t *testing.T) {
	runDir := t.TempDir()
	serve(t, runDir, "", fake{})
	if code, _, errOut := weft(runDir, "keys", "status"); code != cmdutil.ExitFailed ||
		!strings.Contains(errOut, "manages no keys") {
		t.Errorf("%d %s", code, errOut)
	}
}

func TestKeysInit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "weft", "kek")
	code, out, errOut := weft(dir, "keys", "init", path)
	info, err := os.Stat(path)
	if code != cmdutil.ExitOK || err != nil || info.Mode().Perm() != 0o600 || info.Size() != 32 ||
		!strings.Contains(out, "fingerprint") {
		t.Fatalf("%d %s %s, %v, %v", code, out, errOut, info, err)
	}
	if code, _, errOut := weft(dir, "keys", "init", "file://"+path); code != cmdutil.ExitFailed ||
		!strings.Contains(errOut, "is there already") {
		t.Errorf("a second time: %d %s", code, errOut)
	}
	if code, _, errOut := weft(dir, "keys", "init",
		filepath.Join(dir, "no", "such", "kek")); code != cmdutil.ExitFailed ||
		!strings.Contains(errOut, "directory") {
		t.Errorf("without a directory: %d %s", code, errOut)
	}
	config := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(config, []byte("node: a\nkeys: {kek: \"file://"+path+"\"}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errOut := weft(dir, "keys", "check", "--config",
		config); code != cmdutil.ExitOK || !strings.Contains(out, "KEK:") {
		t.Errorf("check: %d %s %s", code, out, errOut)
	}
}

func TestKeysHistoryOfAFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.jsonl")
	for name, text := range map[string]string{
		path +
			".1": `{"time":"2026-01-02T03:04:05Z","node":"a","op":"create","epoch":1,"kek":"file:///k","outcome":"ok","detail":"first"}` + "\n",
		path: `{"time":"2026-01-02T03:04:06Z","node":"a","op":"unwrap","epoch":2,"outcome":"denied","attempts":3}` + "\n" + `{"op":"tor`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, out, errOut := weft(dir, "keys", "history", "--file", path)
	if code != cmdutil.ExitOK ||
		!strings.Contains(out, "a     create  1      -     ok       first") ||
		!strings.Contains(out, "a     unwrap  2      -     denied   -") {
		t.Errorf("%d %s\n%s", code, errOut, out)
	}
	if code, out, _ = weft(dir, "keys", "history", "--file", path, "--last", "1", "-o",
		"json"); code != cmdutil.ExitOK || strings.Contains(out, "create") ||
		!strings.Contains(out, `"attempts": 3`) {
		t.Errorf("%d\n%s", code, out)
	}
	if code, _, errOut = weft(dir, "keys", "history", "--file",
		path+".no"); code != cmdutil.ExitFailed || !strings.Contains(errOut, "read audit log") {
		t.Errorf("%d %s", code, errOut)
	}
}

func TestKMSLine(t *testing.T) {
	now := time.Now()
	for want, status := range map[string]kek.Health{
		"": {},
		"ok 5m0s ago, in 12ms": {LastOK: now.Add(-5 * time.Minute),
			Took: 12 * time.Millisecond},
		"denied for 5m0s: access denied": {Failing: "denied", Since: now.Add(-5 * time.Minute),
			LastError: "access denied"},
		"throttled for 5m0s: tried again and": {Failing: "throttled",
			Since: now.Add(-5 * time.Minute), LastOK: now},
		"; failed as slow 5m0s ago": {LastOK: now, LastErrorKind: "slow",
			LastErrorAt: now.Add(-5 * time.Minute)},
	} {
		if got := kmsLine(&status); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: want %q", got, want)
		}
	}
}
