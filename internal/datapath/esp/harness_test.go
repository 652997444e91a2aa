package esp

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// lastPeer is the highest index of a peer.
const lastPeer = 4095

// contexts are the two that every behaviour must be the same in.
var contexts = []string{"xdp", "tc"}

// saHarness is a sandbox that all tests share, one after the other: loading takes longer than most
// of them.
type saHarness struct{ *sandbox }

var theSABeds = map[string]*saHarness{} // by engine

// newSABed returns the sandbox of an engine, emptied.
func newSABed(t testing.TB, engine string) *saHarness {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
	if theSABeds[engine] == nil {
		b, err := newSandbox(engine, 2)
		if err != nil {
			t.Fatalf("%+v", err)
		}
		theSABeds[engine] = &saHarness{b}
	}
	b := theSABeds[engine]
	b.peers = map[string]uint32{"b": 1, "c": lastPeer}
	for slot := range map[uint32]bool{1: true, lastPeer: true} {
		must(t, b.RemoveAllSAs(slot))
		must(t, b.ClearTunnel(slot))
	}
	must(t, bpf.DeleteWhere(b.maps.SAUsed, func(bpf.SaUsedKey, uint64) bool { return true }))
	return b
}

// forEachEngine runs a test with every engine that this machine has.
func forEachEngine(t *testing.T, test func(t *testing.T, b *saHarness)) {
	b := newSABed(t, "bpf")
	t.Run("bpf", func(t *testing.T) { test(t, b) })
	if b.writer.probe(bpf.EngineKmod) == nil {
		t.Run("kmod", func(t *testing.T) { test(t, newSABed(t, "kmod")) })
	}
}

func TestEngineKmod(t *testing.T) {
	b := newSABed(t, "bpf")
	if err := b.writer.probe(bpf.EngineKmod); err != nil {
		t.Skipf("needs the module (modprobe weft_crypto): engine kmod was left out of every test: %v", err)
	}
}

// sealed is one packet for the engine.
type sealed struct {
	sa   uint32
	iv   uint64
	aad  []byte
	text []byte // for opening: the tag behind it
}

var errBadTag = errors.New("bad tag")

// seal returns ciphertext and tag.
func (b *saHarness) seal(t testing.TB, context string, p sealed) []byte {
	t.Helper()
	frame := append(testFrame(p.sa, p.iv, p.aad, p.text, len(p.text)), make([]byte, 16)...)
	out, code := b.run(t, context, "weft_test_seal", frame)
	if code != 0 {
		t.Fatalf("seal of %d bytes: %v", len(p.text), unix.Errno(code))
	}
	return out[testHeadLen:]
}

// open returns the plaintext, or what is in its place in the packet when it was refused.
func (b *saHarness) open(t testing.TB, context string, p sealed) ([]byte, error) {
	t.Helper()
	frame := testFrame(p.sa, p.iv, p.aad, p.text, len(p.text)-16)
	out, code := b.run(t, context, "weft_test_open", frame)
	switch code {
	case 0:
		return out[testHeadLen : len(out)-16], nil
	case uint32(unix.EBADMSG):
		return out[testHeadLen:], errBadTag
	}
	t.Fatalf("open of %d bytes: %v", len(p.text), unix.Errno(code))
	return nil, nil
}

func (b *saHarness) run(t testing.TB, context, program string, frame []byte) ([]byte, uint32) {
	t.Helper()
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)), Repeat: 1}
	code, err := b.programs[context+" "+program].Run(options)
	must(t, err)
	return options.DataOut, code
}

// counter runs one of the counters' programs and returns the number and the drop reason. XDP, since
// from there both contexts are the same.
func (b *saHarness) counter(t testing.TB, program string, id uint32, seq uint64,
	low uint32) (uint64, bpf.Reason) {
	t.Helper()
	frame := testFrame(id, 0, nil, nil, int(low))
	binary.NativeEndian.PutUint64(frame[24:], seq)
	out, code := b.run(t, "xdp", program, frame)
	return binary.NativeEndian.Uint64(out[24:]), bpf.Reason(code)
}

func (b *saHarness) take(t testing.TB, id uint32) (uint64, bpf.Reason) {
	t.Helper()
	return b.counter(t, "weft_test_take", id, 0, 0)
}

func (b *saHarness) admit(t testing.TB, id uint32, low uint32) (uint64, bpf.Reason) {
	t.Helper()
	return b.counter(t, "weft_test_admit", id, 0, low)
}

func (b *saHarness) commit(t testing.TB, id uint32, seq uint64) bpf.Reason {
	t.Helper()
	_, reason := b.counter(t, "weft_test_commit", id, seq, 100)
	return reason
}

// testSA is an SA of node b, epoch 1, lane 0, whose key begins with the given byte.
func testSA(out bool, id uint64, key byte) *SA {
	sa := &SA{Node: "b", Out: out, Epoch: 1, ID: id, Number: 1, Expires: time.Now().Add(time.Hour)}
	for i := range sa.Key {
		sa.Key[i] = key + byte(3*i)
	}
	sa.Salt = [4]byte{key ^ 0xa5, 0x2b, 0x3c, 0x4d}
	return sa
}

var firstSA = saKey(1, 1, 0)

// reference is Go's own AES-GCM with an SA's key.
func reference(t testing.TB, key [32]byte) cipher.AEAD {
	t.Helper()
	block, err := aes.NewCipher(key[:])
	must(t, err)
	aead, err := cipher.NewGCM(block)
	must(t, err)
	return aead
}

func nonce(salt [4]byte, iv uint64) []byte { return binary.BigEndian.AppendUint64(salt[:], iv) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMain(m *testing.M) {
	// Objects with a fault in them, which these tests must notice: see test/mutate.
	if dir := os.Getenv("WEFT_TEST_OBJECTS"); dir != "" {
		bpf.Objects = os.DirFS(dir)
	}
	os.Exit(m.Run())
}
