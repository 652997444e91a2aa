package sealer

import (
	"bytes"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/sealer/control"
	"weft.dev/weft/test/espref"
)

// record is an output that keeps what was written.
type record struct{ frames [][]byte }

func (r *record) writev(iovs []unix.Iovec) syscall.Errno {
	var frame []byte
	for _, v := range iovs {
		frame = append(frame, unsafe.Slice(v.Base, int(v.Len))...)
	}
	r.frames = append(r.frames, frame)
	return 0
}

// take is what was written since the last take.
func (r *record) take() [][]byte {
	frames := r.frames
	r.frames = nil
	return frames
}

const (
	testNode     = 5
	testSA       = testNode<<10 | 3<<6 | 7
	testIdentity = 0x2abcde
	testPort     = 4500
)

func testKey(out bool, id uint32) control.Key {
	key := control.Key{Out: out, SA: id, Fingerprint: 1,
		Salt: [4]byte{1, 2, byte(id >> 8), byte(id)}}
	for i := range key.Key {
		key.Key[i] = byte(i) ^ byte(id) ^ byte(id>>8*3)
	}
	return key
}

// reference is the same key for test/espref.
func reference(id uint32) *espref.SA {
	key := testKey(false, id)
	return &espref.SA{SPI: meta{sa: id, identity: testIdentity}.spi(), Key: key.Key[:],
		Salt: key.Salt}
}

// testEngine has the keys of both directions of the SAs.
func testEngine(t testing.TB, ids ...uint32) (*engine, *record) {
	t.Helper()
	out := &record{}
	e, err := newEngine(out, newKeyring())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.keys.wipe()
		release(e.sealed)
	})
	e.port.Store(testPort)
	for _, id := range ids {
		if err := e.keys.install([]control.Key{testKey(true, id), testKey(false, id)}); err != nil {
			t.Fatal(err)
		}
	}
	return e, out
}

// give gives the engine a frame, behind which none follows, and returns what came of it.
func give(e *engine, out *record, frame []byte) [][]byte {
	buf := append(bytes.Clone(frame), make([]byte, slack)...)
	e.frame(buf, len(frame))
	e.flush()
	return out.take()
}

// feeder gives an engine frames as the worker does that reads them without waiting.
type feeder struct {
	worker *worker
	arena  []byte
	at     int
}

func newFeeder(e *engine) *feeder {
	return &feeder{worker: &worker{engine: e}, arena: make([]byte, arenaLen)}
}

func (f *feeder) frame(frame []byte) {
	n := copy(f.arena[f.at:f.at+readLen], frame)
	f.at = f.worker.frame(f.arena, f.at, n)
}

// feed is what comes of frames that are read without waiting.
func feed(e *engine, out *record, frames ...[]byte) [][]byte {
	f := newFeeder(e)
	for _, frame := range frames {
		f.frame(frame)
	}
	e.flush()
	return out.take()
}

// frame puts the headers of the tap in front of an IP packet.
func frame(v vnet, m meta, ip []byte) []byte {
	f := make([]byte, headLen, headLen+len(ip))
	v.put(f)
	m.put(f[vnetLen:])
	kind := uint16(etherIP4)
	if len(ip) > 0 && ip[0]>>4 == 6 {
		kind = etherIP6
	}
	be.PutUint16(f[vnetLen+metaLen:], kind)
	return append(f, ip...)
}

// split is the reverse.
func split(f []byte) (vnet, meta, []byte) {
	return decodeVnet(f), decodeMeta(f[vnetLen:]),
		f[headLen:]
}

var (
	pod4, podB4 = netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.9")
	pod6, podB6 = netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:2::9")
)

func podPacket(ip6 bool) inet.Packet {
	p := inet.Packet{Src: pod4, Dst: podB4, TTL: 63, Fragment: 0x4000, ID: 0x1234}
	if ip6 {
		p.Src, p.Dst, p.Fragment, p.ID = pod6, podB6, 0, 0
	}
	return p
}

// pattern is data of which each byte differs from its neighbours.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// unfinish makes a packet one that is for its device to finish: the checksum's field has only the
// pseudo-header's sum.
func unfinish(ip []byte, th, check int, protocol uint8) []byte {
	ip = bytes.Clone(ip)
	ne.PutUint16(ip[th+check:], fold(pseudo(ip, protocol, len(ip)-th)))
	return ip
}

// gso is a packet that stands for many, with the header that says so.
func gso(ip []byte, size int) (vnet, []byte) {
	v := vnet{unfinished: true, size: size, start: etherLen + ip4Len, offset: 16, gso: gsoTCP4}
	protocol, th := ip[9], ip4Len
	if ip[0]>>4 == 6 {
		protocol, th = ip[6], ip6Len
		v.start, v.gso = etherLen+ip6Len, gsoTCP6
	} else {
		th = int(ip[0]&15) * 4
		v.start = etherLen + th
	}
	if protocol == protoUDP {
		v.gso, v.offset = gsoUDP, 6
		v.hdr = v.start + udpLen
	} else {
		v.ecn = ip[th+13]&tcpCWR != 0
		v.hdr = v.start + int(ip[th+12]>>4)*4
	}
	return v, unfinish(ip, th, v.offset, protocol)
}

// pieces are the ESP packets of a SEALED frame, and its outer header.
func pieces(t testing.TB, f []byte) (outer []byte, esp [][]byte) {
	t.Helper()
	v, _, ip := split(f)
	payload, _ := outerPayload(ip)
	if payload == nil {
		t.Fatalf("no UDP in what was sealed: % x", ip[:min(48, len(ip))])
	}
	outer = ip[:len(ip)-len(payload)]
	size := len(payload)
	if v.gso != gsoNone {
		size = v.size
	}
	for len(payload) > 0 {
		n := min(size, len(payload))
		esp = append(esp, payload[:n])
		payload = payload[n:]
	}
	return outer, esp
}

// inners seals a frame and opens what came of it with the reference.
func inners(t testing.TB, e *engine, out *record, f []byte) (inner [][]byte) {
	t.Helper()
	_, m, _ := split(f)
	seq := m.seq
	for _, sealed := range give(e, out, f) {
		_, esp := pieces(t, sealed)
		for _, piece := range esp {
			p, err := reference(m.sa).Open(piece, uint32(seq>>32))
			if err != nil {
				t.Fatalf("number %d: %v", seq, err)
			}
			if p.Seq != seq || p.IV != seq {
				t.Fatalf("number %d, IV %d, want %d", p.Seq, p.IV, seq)
			}
			inner = append(inner, p.Inner)
			seq++
		}
	}
	return inner
}

// tcp is a TCP header to build; the zero value's data offset fits its options.
type tcp struct {
	seq, ack uint32
	flags    uint8
	window   uint16
	options  []byte // a multiple of 4 bytes
}

// timestamps are options as Linux sends them (RFC 7323).
func timestamps(value, echo uint32) []byte {
	return be.AppendUint32(be.AppendUint32([]byte{1, 1, 8, 10}, value), echo)
}

// segment is the packet with a TCP segment in it, its checksum right.
func segment(p inet.Packet, h tcp, data []byte) []byte {
	b := inet.TCP(inet.TCPHeader{SrcPort: 4000, DstPort: 80, Seq: h.seq, Flags: h.flags,
		Window: h.window}, nil)
	be.PutUint32(b[8:], h.ack)
	b[12] = uint8(tcpMin+len(h.options)) / 4 << 4
	p.Protocol = protoTCP
	p.Payload = append(append(b, h.options...), data...)
	inet.SetTransportChecksum(p.Src, p.Dst, protoTCP, p.Payload)
	return p.IP()
}

// text is a log that a test reads while it is written.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (x *text) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(b)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

func lockThread() { runtime.LockOSThread() }
