package esp

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
)

func TestInstallSA(t *testing.T) {
	b := newSABed(t, "auto")
	sa := testSA(true, 7, 1)
	sa.Lane, sa.Number, sa.Epoch = 1, 31, 1
	must(t, b.InstallSA(sa))
	if sa.Key != [32]byte{} || sa.Salt != [4]byte{} {
		t.Error("the key was not zeroed")
	}
	id := saKey(1, 1, 1)
	for want := range uint64(5) {
		if n, reason := b.take(t, id); n != want+1 || reason != 0 {
			t.Fatalf("number %d, %s, want %d", n, reason, want+1)
		}
	}
	again := testSA(true, 7, 1)
	again.Lane = 1
	must(t, b.InstallSA(again))
	if n, _ := b.take(t, id); n != 6 {
		t.Errorf("the same keys again: next number is %d, want 6", n)
	}
	list, err := b.SAs()
	must(t, err)
	if len(list) != 1 {
		t.Fatalf("%d SAs, want 1", len(list))
	}
	got := list[0]
	if got.Node != "b" || !got.Out || got.Epoch != 1 || got.Lane != 1 || got.ID != 7 ||
		got.Number != 31 || got.Counter != 6 || got.Packets != 6 ||
		got.Engine != b.EngineStatus().Active {
		t.Errorf("status %+v", got)
	}
	if left := time.Until(got.Expires); left < 59*time.Minute || left > 61*time.Minute ||
		time.Since(got.Installed) > time.Minute {
		t.Errorf("status %+v: times", got)
	}
}

// TestReplaceSA puts other keys in an entry's place: the counter begins anew, and the old keys
// never come back.
func TestReplaceSA(t *testing.T) {
	b := newSABed(t, "auto")
	for _, out := range []bool{true, false} {
		must(t, b.InstallSA(testSA(out, 7, 1)))
	}
	b.take(t, firstSA)
	b.commit(t, firstSA, 9)
	second := testSA(true, 8, 2)
	aead, salt := reference(t, second.Key), second.Salt
	must(t, b.InstallSA(second))
	must(t, b.InstallSA(testSA(false, 8, 2)))
	if n, _ := b.take(t, firstSA); n != 1 {
		t.Errorf("first number of new keys is %d", n)
	}
	if reason := b.commit(t, firstSA, 9); reason != 0 {
		t.Errorf("the window of new keys is not empty: %s", reason)
	}
	p := sealed{sa: firstSA, iv: 1, aad: make([]byte, 12), text: []byte("new keys")}
	b.checkPacket(t, "xdp", p, aead.Seal(nil, nonce(salt, 1), p.text, p.aad))
	for _, out := range []bool{true, false} {
		if err := b.InstallSA(testSA(out, 7, 1)); !errors.Is(err, ErrKeyUsed) {
			t.Errorf("keys that were replaced, again (out %t): %v", out, err)
		}
	}
}

func TestRemoveSAs(t *testing.T) {
	b := newSABed(t, "auto")
	for lane := range uint8(2) {
		for _, out := range []bool{true, false} {
			sa := testSA(out, 7, 1)
			sa.Lane = lane
			must(t, b.InstallSA(sa))
		}
	}
	other := testSA(true, 7, 1)
	other.Node = "c"
	must(t, b.InstallSA(other))
	must(t, b.SealWith("b", 1))
	for range 2 { // idempotent
		must(t, b.RemoveSAs("b", true, 1))
	}
	must(t, b.RemoveSAs("b", true, 2))
	must(t, b.RemoveSAs("nobody", true, 1))
	if _, reason := b.take(t, firstSA); reason != bpf.ReasonNoKey {
		t.Errorf("sealing without SA: %s", reason)
	}
	if _, reason := b.admit(t, firstSA, 1); reason != 0 {
		t.Errorf("the other direction is gone too: %s", reason)
	}
	if _, reason := b.take(t, saKey(lastPeer, 1, 0)); reason != 0 {
		t.Errorf("the other node's is gone too: %s", reason)
	}
	sealing, err := b.Sealing()
	must(t, err)
	if i := slices.IndexFunc(sealing, func(s Sealing) bool { return s.Node == "b" }); i < 0 ||
		sealing[i].Epoch != 0 {
		t.Errorf("sealing %+v, want epoch 0 for b", sealing)
	}
	must(t, b.RemoveSAs("b", false, 1))
	if _, reason := b.admit(t, firstSA, 1); reason != bpf.ReasonEspUnknownSa {
		t.Errorf("opening without SA: %s", reason)
	}
	if err := b.InstallSA(testSA(true, 7, 1)); !errors.Is(err, ErrKeyUsed) {
		t.Errorf("keys that were removed, again: %v", err)
	}
	must(t, b.RemoveAllSAs(lastPeer))
	if names, err := b.PeerNames(); err != nil || len(names) != 1 {
		t.Errorf("names %v, %v", names, err)
	}
}

func TestSealWith(t *testing.T) {
	b := newSABed(t, "auto")
	peer := bpf.Peer{Family: 4, Mtu: 1438, Local: bpf.Addr{B: [16]uint8{1}},
		Remote: bpf.Addr{B: [16]uint8{2}}}
	must(t, b.maps.Peers.Put(uint32(1), &peer))
	must(t, b.InstallSA(testSA(true, 7, 1)))
	if err := b.SealWith("b", 1); err == nil || !strings.Contains(err.Error(), "lane 1") {
		t.Errorf("lane 1 has no SA: %v", err)
	}
	foreign := testSA(true, 8, 1)
	foreign.Lane = 1
	must(t, b.InstallSA(foreign))
	if err := b.SealWith("b", 1); err == nil ||
		!strings.Contains(err.Error(), "another handshake") {
		t.Errorf("lanes of two handshakes: %v", err)
	}
	second := testSA(true, 7, 1)
	second.Lane = 1
	must(t, b.InstallSA(second))
	must(t, b.SealWith("b", 1))
	var now bpf.Peer
	must(t, b.maps.Peers.Lookup(uint32(1), &now))
	peer.Epoch, peer.Lanes, peer.Id = 1, 2, 7
	if now != peer {
		t.Errorf("peer %+v\nwant %+v", now, peer)
	}
	must(t, b.SealWith("b", 0))
	must(t, b.maps.Peers.Lookup(uint32(1), &now))
	if now.Epoch != 0 || now.Mtu != 1438 {
		t.Errorf("peer %+v", now)
	}
	if err := b.SealWith("nobody", 1); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("unknown node: %v", err)
	}
	// The agent cleans up after a node that vanished, whose place in the maps is free already.
	for _, err := range []error{b.SealWith("nobody", 0), b.RemoveSAs("nobody", true, 1),
		b.RemoveSAs("nobody", false, 1)} {
		if err != nil {
			t.Errorf("clean up after a node that is gone: %v", err)
		}
	}
}

func TestSAExpires(t *testing.T) {
	b := newSABed(t, "auto")
	for _, out := range []bool{true, false} {
		sa := testSA(out, 7, 1)
		sa.Expires = time.Now().Add(2 * time.Second)
		must(t, b.InstallSA(sa))
	}
	time.Sleep(2100 * time.Millisecond)
	if n, reason := b.take(t, firstSA); reason != bpf.ReasonKeyExpired || n != 0 {
		t.Errorf("sealing: number %d, %s", n, reason)
	}
	if n, reason := b.admit(t, firstSA, 1); reason != bpf.ReasonKeyExpired || n != 0 {
		t.Errorf("opening: number %d, %s", n, reason)
	}
}

func TestSAExhausted(t *testing.T) {
	b := newSABed(t, "auto")
	sa := testSA(true, 7, 1)
	sa.MaxPackets = 3
	must(t, b.InstallSA(sa))
	for want := range uint64(3) {
		if n, reason := b.take(t, firstSA); n != want+1 || reason != 0 {
			t.Fatalf("number %d, %s", n, reason)
		}
	}
	for range 3 {
		if n, reason := b.take(t, firstSA); n != 0 || reason != bpf.ReasonKeyExhausted {
			t.Fatalf("beyond the limit: number %d, %s", n, reason)
		}
	}
	list, err := b.SAs()
	must(t, err)
	if list[0].Counter != 3 {
		t.Errorf("counter %d, want 3", list[0].Counter)
	}
}

func TestInstallSARefuses(t *testing.T) {
	b := newSABed(t, "auto")
	for name, row := range map[string]struct {
		change func(*SA)
		want   string
	}{
		"epoch 0":       {func(sa *SA) { sa.Epoch = 0 }, "epoch 0"},
		"epoch 16":      {func(sa *SA) { sa.Epoch = 16 }, "epoch 16"},
		"lane 64":       {func(sa *SA) { sa.Lane = 64 }, "lane 64"},
		"no ID":         {func(sa *SA) { sa.ID = 0 }, "id"},
		"zero key":      {func(sa *SA) { sa.Key = [32]byte{} }, "key"},
		"expired":       {func(sa *SA) { sa.Expires = time.Now().Add(-time.Second) }, "expires"},
		"unknown node":  {func(sa *SA) { sa.Node = "nobody" }, "nobody"},
		"no expiration": {func(sa *SA) { sa.Expires = time.Time{} }, "expires"},
	} {
		sa := testSA(true, 7, 1)
		row.change(sa)
		err := b.InstallSA(sa)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", name, err)
		}
		if sa.Key != [32]byte{} {
			t.Errorf("%s: the key was not zeroed", name)
		}
	}
	if list, err := b.SAs(); err != nil || len(list) != 0 {
		t.Errorf("%d SAs, %v", len(list), err)
	}
}

// TestSARestart is another agent on the same maps: it must find all as it was, and finish what a
// crash left.
func TestSARestart(t *testing.T) {
	b := newSABed(t, "auto")
	for _, out := range []bool{true, false} {
		for lane := range uint8(2) {
			sa := testSA(out, 7, 1)
			sa.Lane = lane
			must(t, b.InstallSA(sa))
		}
	}
	must(t, b.SealWith("b", 1))
	b.take(t, firstSA)
	b.take(t, firstSA)
	// Crashes: one while keys were being put in, one while they were being removed.
	must(t,
		b.maps.SAOut.Put(saKey(1, 2, 0),
			&bpf.SaOut{Head: bpf.SaHead{Fingerprint: 9, State: bpf.SaNew}}))
	dead := testSA(true, 10, 1)
	dead.Epoch = 3
	must(t, b.InstallSA(dead))
	must(t, b.writer.setState(saKey(1, 3, 0), true, bpf.SaDead))

	must(t, b.Associations.Close())
	next, err := Open(b.host, b.opts)
	must(t, err)
	b.Associations = next // nobody has said which nodes there are
	list, err := b.SAs()
	must(t, err)
	if len(list) != 4 || list[0].Node != "b" {
		t.Errorf("SAs after a restart: %+v", list)
	}
	if n, err := countEntries(b.maps.SAOut); err != nil || n != 2 {
		t.Errorf("%d entries to seal with, %v: want 2", n, err)
	}
	sealing, err := b.Sealing()
	must(t, err)
	if len(sealing) != 1 || sealing[0] != (Sealing{Node: "b", Epoch: 1, ID: 7}) {
		t.Errorf("sealing %+v", sealing)
	}
	b.peers = map[string]uint32{"b": 1}
	must(t, b.InstallSA(testSA(true, 7, 1)))
	if n, _ := b.take(t, firstSA); n != 3 {
		t.Errorf("next number %d, want 3", n)
	}
	back := testSA(true, 10, 1)
	back.Epoch = 3
	if err := b.InstallSA(back); !errors.Is(err, ErrKeyUsed) {
		t.Errorf("keys that were being removed, again: %v", err)
	}
}

// TestSAOtherNode gives a node's index to another node: it inherits nothing.
func TestSAOtherNode(t *testing.T) {
	b := newSABed(t, "auto")
	must(t, b.InstallSA(testSA(true, 7, 1)))
	must(t, b.InstallSA(testSA(false, 7, 1)))
	b.peers = map[string]uint32{"d": 1}
	sa := testSA(true, 8, 2)
	sa.Node, sa.Epoch = "d", 2
	must(t, b.InstallSA(sa))
	list, err := b.SAs()
	must(t, err)
	if len(list) != 1 || list[0].Node != "d" || list[0].ID != 8 {
		t.Errorf("SAs %+v", list)
	}
}

func countEntries(m *ebpf.Map) (int, error) {
	keys, err := bpftest.Keys(m)
	return len(keys), err
}

// TestSALayout holds the hand-written mirrors of bpf/sa.bpf.c and bpf/sa_test.bpf.c equal to the
// compiler's.
func TestSALayout(t *testing.T) {
	spec, err := bpf.LoadSpec("sa_xdp")
	must(t, err)
	test, err := bpf.LoadSpec("sa_test_xdp")
	must(t, err)
	for _, row := range []struct {
		name string
		size int
		in   *ebpf.CollectionSpec
	}{
		{"sa_request", int(unsafe.Sizeof(saRequest{})), spec},
		{"weft_node_name", len(nodeName{}), spec},
	} {
		if got := structSize(t, row.in, row.name); got != row.size {
			t.Errorf("struct %s: %d bytes in C, %d in Go", row.name, got, row.size)
		}
	}
	// These two are held to their sizes by the compiler.
	if frame, head := binary.Size(powersFrame{}), binary.Size(testHead{}); frame != 48 ||
		head != testHeadLen {
		t.Errorf("struct powers_frame: %d bytes, want 48; struct test_head: %d, want %d", frame,
			head, testHeadLen)
	}
	if got := structSize(t, test, "weft_crypt"); got > 32<<10 {
		t.Errorf("struct weft_crypt: %d bytes, more than the kernel allows for a per-CPU value",
			got)
	}
	if os.Getpagesize() < int(unsafe.Sizeof(saRequest{})) {
		t.Error("struct sa_request does not fit a page")
	}
}

func structSize(t *testing.T, spec *ebpf.CollectionSpec, name string) int {
	t.Helper()
	var s *btf.Struct
	must(t, spec.Types.TypeByName(name, &s))
	return int(s.Size)
}
