package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/sealer/control"
)

// bySealer is the third way in which hostile packets are opened: in TC, by a sealer.
const bySealer = "user"

// sealerProcess is a real one, whose tap is a pair of sockets: what is sent is what a hook would
// have handed over.
type sealerProcess struct {
	once   sync.Once
	err    error
	client *control.Client
	hooks  int // our end
	dir    string
}

var theSealerProcess sealerProcess

func (p *sealerProcess) start() error {
	var err error
	if p.dir, err = os.MkdirTemp("", "wt-dp-sealer-"); err != nil {
		return err
	}
	binary := os.Getenv("WEFT_SEALER") // in a VM nothing is built
	if binary == "" {
		binary = filepath.Join(p.dir, control.Program)
		build := exec.Command("go", "build", "-o", binary, "weft.dev/weft/cmd/weft-sealer")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return err
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for _, fd := range pair {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
			&unix.Timeval{Sec: 30}); err != nil {
			return err
		}
	}
	p.hooks = pair[0]
	tap := os.NewFile(uintptr(pair[1]), "tap")
	defer tap.Close()
	started, err := control.Start(context.Background(),
		control.Options{Binary: binary, Tap: tap, SocketPath: filepath.Join(p.dir, "sock")})
	if err != nil {
		return err
	}
	p.client = started.Client
	if err := p.client.Configure(context.Background(), control.Config{ESPPort: 4500}); err != nil {
		return err
	}
	return p.client.Begin(context.Background())
}

func (p *sealerProcess) stop() {
	if p.client != nil {
		_ = p.client.Kill()
		<-p.client.Done()
	}
	_ = os.RemoveAll(p.dir)
}

const vnetSize = 12

// exchange gives the process a frame and returns all that it gives back.
func (p *sealerProcess) exchange(t testing.TB, frame []byte) (back []tapFrame) {
	t.Helper()
	buf := make([]byte, 1<<17)
	send := func(f []byte) { must(t, unix.Send(p.hooks, append(make([]byte, vnetSize), f...), 0)) }
	read := func() tapFrame {
		n, err := unix.Read(p.hooks, buf)
		must(t, err)
		return readTapFrame(append([]byte(nil), buf[vnetSize:n]...))
	}
	// It answers once it finds no more to read.
	send(frame)
	back = append(back, read())
	// Of a key that it has not, which it says behind all that is left.
	last := tapFrame{kind: bpf.SealerSeal4, count: 1, id: 1<<22 - 1, packet: inner()}
	send(last.bytes())
	for f := read(); f.kind != bpf.SealerRefused || f.id != last.id; f = read() {
		back = append(back, f)
	}
	return back
}

// viaSealer runs from_wire on a frame that a peer's sealer might have sent, and what the hook gives
// to the sealer through that and from_sealer.
func (b *sealHarness) viaSealer(t testing.TB, frame []byte) (verdict string, out []byte) {
	t.Helper()
	b.useSealer(t)
	frame = append([]byte(nil), frame...)
	at := 14 + 20
	if b.family == 6 {
		at = 14 + 40
	}
	if len(frame) >= at+4 && binary.BigEndian.Uint16(frame[at+2:]) == 4500 {
		binary.BigEndian.PutUint16(frame[at:], 0x8123)
	}
	verdict, out = b.send(t, "tc", "from_wire", "wtup", frame)
	if verdict != "redirect" || readTapFrame(out).kind != bpf.SealerOpen {
		return verdict, out
	}
	for _, f := range theSealerProcess.exchange(t, out) {
		verdict, out = b.fromSealer(t, f)
		if verdict == "redirect" && bytes.Equal(out[:6], uplinkMAC) {
			return b.toStack(t, out)
		}
	}
	return verdict, out
}

// toStack runs from_wire on what from_sealer gives back to the uplink, for the stack.
func (b *sealHarness) toStack(t testing.TB, frame []byte) (verdict string, out []byte) {
	t.Helper()
	code, out, err := b.runWith(b.progs.Get("from_wire", hook.TCIngress), &skbContext{
		Ifindex: uint32(b.index["wtup"]),
		Mark:    0x57450000 | bpf.TagOpened | 999, // SEALER_MARK, a handle
	}, frame)
	must(t, err)
	return verdictOf("tc", code), out
}

// useSealer gives the process the keys for receiving that the harness has now.
func (b *sealHarness) useSealer(t testing.TB) {
	t.Helper()
	if b.sealing {
		return
	}
	b.sealing = true
	theSealerProcess.once.Do(func() { theSealerProcess.err = theSealerProcess.start() })
	must(t, theSealerProcess.err)
	b.sealerIndex.Store(uint32(b.index["wtx"]))
	must(t, b.inside(func() error { return b.SetSealer(true) }))
	t.Cleanup(func() {
		must(t, b.inside(func() error { return b.SetSealer(false) }))
		b.sealerIndex.Store(0)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	held, err := theSealerProcess.client.List(ctx)
	must(t, err)
	must(t, theSealerProcess.client.Remove(ctx, held...))
	for lane := range uint8(b.lanes) {
		key := control.Key{SA: 1<<10 | sealEpoch<<6 | uint32(lane), Fingerprint: 77, Salt: saltIn}
		copy(key.Key[:], laneKey(keyIn, lane))
		must(t, theSealerProcess.client.Install(ctx, key))
		must(t, b.MarkSealer(esp.SealerKey{ID: key.SA, Fingerprint: key.Fingerprint}, true))
	}
}

// receive runs from_wire in one of the contexts, or by a sealer.
func (b *sealHarness) receive(t testing.TB, way string, frame []byte) (verdict string, out []byte) {
	t.Helper()
	if way == bySealer {
		return b.viaSealer(t, frame)
	}
	return b.send(t, way, "from_wire", "wtup", frame)
}

// receiveWays are the ways in which a packet from the wire is opened.
var receiveWays = append(append([]string(nil), contexts...), bySealer)

// sealersReason is the name under which a sealer refuses what a hook refuses under another: it
// looks at the trailer and at the lengths of what is before it, and has one name for both.
func sealersReason(way, reason string) string {
	if way == bySealer &&
		slices.Contains([]string{"esp_padding", "bad_ip_header", "truncated"}, reason) {
		return "esp_malformed"
	}
	return reason
}
