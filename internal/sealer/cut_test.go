package sealer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns/nettest"
)

// kernel is the kernel's own segmentation: what is sent on an interface that can do nothing is cut
// and summed before it comes out of it.
type kernel struct {
	t     *testing.T
	hooks *hooks
	tap   *os.File
}

func newKernel(t *testing.T) *kernel {
	t.Helper()
	ns := nettest.New(t, "cut")
	k := &kernel{t: t, tap: testTap(t, ns)}
	if err := unix.IoctlSetInt(int(k.tap.Fd()), unix.TUNSETOFFLOAD, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(int(k.tap.Fd()), true); err != nil {
		t.Fatal(err)
	}
	k.hooks = newHooks(t, ns, tapName)
	return k
}

// cut is what the kernel makes of a frame.
func (k *kernel) cut(f []byte) (packets [][]byte) {
	k.t.Helper()
	k.hooks.send(f)
	for {
		b := make([]byte, headLen+maxIP)
		n, err := unix.Read(int(k.tap.Fd()), b)
		if err == unix.EAGAIN {
			return packets
		}
		if err != nil {
			k.t.Fatal(err)
		}
		v, _, ip := split(b[:n])
		if v.gso != gsoNone || v.unfinished {
			k.t.Fatalf("the reference did not do its work: %+v", v)
		}
		packets = append(packets, ip)
	}
}

// cutRow is one packet that stands for many.
type cutRow struct {
	name  string
	ip6   bool
	udp   bool
	size  int // of a segment's payload
	bytes int // of all payload
	tos   uint8
	id    uint16
	tcp   tcp
	ext   []inet.Extension
	ipOpt []byte // IPv4 options
}

func (r cutRow) frame(seq uint64) []byte {
	p := podPacket(r.ip6)
	p.TOS, p.Extensions, p.Options = r.tos, r.ext, r.ipOpt
	if !r.ip6 {
		p.ID = r.id
	}
	data := pattern(r.bytes)
	ip := p.UDP(5000, 53, data).IP()
	if !r.udp {
		ip = segment(p, r.tcp, data)
	}
	var v vnet
	if len(r.ext) == 0 {
		v, ip = gso(ip, r.size)
	} else {
		th := ip6Len
		for _, e := range r.ext {
			th += len(e.Header)
		}
		v = vnet{unfinished: true, gso: gsoTCP6, size: r.size, start: etherLen + th, offset: 16,
			hdr: etherLen + th + 20}
		ip = unfinish(ip, th, 16, protoTCP)
	}
	count := (r.bytes + r.size - 1) / r.size
	return frame(v,
		meta{kind: kindSeal4, count: uint8(count), sa: testSA, identity: testIdentity, seq: seq},
		ip)
}

func cutRows() []cutRow {
	full := tcp{seq: 0xfffffff0, ack: 77, flags: tcpACK, window: 1000, options: timestamps(1, 2)}
	flags := func(f uint8) tcp { return tcp{seq: 5, ack: 6, flags: f, window: 9, options: timestamps(3, 4)} }
	sack := append(timestamps(9, 8), 1, 1, 5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4)
	var rows []cutRow
	for _, ip6 := range []bool{false, true} {
		rows = append(rows, []cutRow{
			{name: "full segments", ip6: ip6, size: 1448, bytes: 10 * 1448, tcp: full},
			{name: "last one short", ip6: ip6, size: 1448, bytes: 10*1448 + 1, tcp: full},
			{name: "64 kB", ip6: ip6, size: 1448, bytes: 65000, tcp: full},
			{name: "odd size", ip6: ip6, size: 1001, bytes: 5000, tcp: full},
			{name: "payload smaller than the headers", ip6: ip6, size: 8, bytes: 100, tcp: full},
			{name: "one byte a segment", ip6: ip6, size: 1, bytes: 9, tcp: full},
			{name: "jumbo", ip6: ip6, size: 8948, bytes: 60000, tcp: full},
			{name: "no options", ip6: ip6, size: 1460, bytes: 9000,
				tcp: tcp{seq: 1, ack: 2, flags: tcpACK, window: 3}},
			{name: "selective acknowledgement", ip6: ip6, size: 1400, bytes: 9000,
				tcp: tcp{flags: tcpACK, options: sack}},
			{name: "PSH", ip6: ip6, size: 1000, bytes: 4500, tcp: flags(tcpACK | tcpPSH)},
			{name: "FIN and PSH", ip6: ip6, size: 1000, bytes: 4500,
				tcp: flags(tcpACK | tcpPSH | tcpFIN)},
			{name: "CWR", ip6: ip6, size: 1000, bytes: 4500, tos: 2, tcp: flags(tcpACK | tcpCWR)},
			{name: "ECE", ip6: ip6, size: 1000, bytes: 4500, tos: 1, tcp: flags(tcpACK | tcpECE)},
			{name: "CWR, ECE, PSH", ip6: ip6, size: 1000, bytes: 4500, tos: 3,
				tcp: flags(tcpACK | tcpCWR | tcpECE | tcpPSH)},
			{name: "DSCP", ip6: ip6, size: 1000, bytes: 4500, tos: 0xb8, tcp: full},
			{name: "UDP", ip6: ip6, udp: true, size: 1400, bytes: 20 * 1400},
			{name: "UDP, last one short", ip6: ip6, udp: true, size: 1400, bytes: 20*1400 + 3},
			{name: "UDP, odd size", ip6: ip6, udp: true, size: 333, bytes: 4001},
		}...)
	}
	return append(rows, []cutRow{
		{name: "number wraps", size: 1000, bytes: 5000, id: 0xfffe, tcp: full},
		{name: "number wraps, UDP", udp: true, size: 1000, bytes: 5000, id: 0xfffe},
		{name: "IPv4 options", size: 1000, bytes: 5000, id: 1, ipOpt: []byte{1, 1, 1, 0},
			tcp: full},
		{name: "hop-by-hop options", ip6: true, size: 1000, bytes: 5000, tcp: full,
			ext: []inet.Extension{{Protocol: 0, Header: []byte{0, 0, 1, 4, 0, 0, 0, 0}}}},
	}...)
}

// TestCutAsLinux: what was cut and sealed is, opened by the reference, what Linux cuts, byte for
// byte.
func TestCutAsLinux(t *testing.T) {
	k := newKernel(t)
	seq := uint64(1)
	for _, row := range cutRows() {
		t.Run(fmt.Sprintf("%s, IPv6 %v", row.name, row.ip6), func(t *testing.T) {
			e, out := testEngine(t, testSA)
			compareCut(t, k, e, out, row, seq)
		})
	}
	t.Run("random", func(t *testing.T) {
		e, out := testEngine(t, testSA)
		random := rand.New(rand.NewPCG(1, 2))
		for range 300 {
			row := randomCut(random)
			compareCut(t, k, e, out, row, seq)
			seq += 255
			if t.Failed() {
				t.Fatalf("%+v", row)
			}
		}
	})
}

func randomCut(r *rand.Rand) cutRow {
	row := cutRow{ip6: r.IntN(2) == 0, udp: r.IntN(3) == 0, size: 1 + r.IntN(2000),
		tos: uint8(r.Uint32()), id: uint16(r.Uint32())}
	// Linux refuses what would be one segment, and more than 128 of UDP.
	row.bytes = min(row.size+1+r.IntN(row.size*100), 65000)
	row.tcp = tcp{seq: r.Uint32(), ack: r.Uint32(), window: uint16(r.Uint32()),
		options: timestamps(r.Uint32(), r.Uint32())[:4*r.IntN(4)]}
	row.tcp.flags = uint8(r.Uint32()) &^ (tcpSYN | tcpRST)
	return row
}

func compareCut(t *testing.T, k *kernel, e *engine, out *record, row cutRow, seq uint64) {
	t.Helper()
	f := row.frame(seq)
	want := k.cut(f)
	if len(want) != (row.bytes+row.size-1)/row.size {
		t.Fatalf("Linux made %d packets of it", len(want))
	}
	got := inners(t, e, out, f)
	if len(got) != len(want) {
		t.Fatalf("%d packets, Linux makes %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("packet %d:\n     got % x\n   Linux % x", i, got[i][:min(80, len(got[i]))],
				want[i][:min(80, len(want[i]))])
		}
	}
}

// TestFinishAsLinux: a packet that stands for itself, whose checksum was left to the device.
func TestFinishAsLinux(t *testing.T) {
	k := newKernel(t)
	e, out := testEngine(t, testSA)
	for i, row := range cutRows()[:36] {
		for _, size := range []int{0, 1, 2, 63, 64, 65, 1400} {
			row.bytes, row.size = size, 1
			if row.udp && size == 0 {
				continue
			}
			_, _, ip := split(row.frame(1))
			v, _, _ := split(row.frame(1))
			v.gso, v.size, v.ecn = gsoNone, 0, false
			seq := uint64(100*i + size%99 + 1)
			f := frame(v,
				meta{kind: kindSeal6, count: 1, sa: testSA, identity: testIdentity, seq: seq}, ip)
			want := k.cut(f)
			got := inners(t, e, out, f)
			if len(want) != 1 || len(got) != 1 || !bytes.Equal(got[0], want[0]) {
				t.Errorf("%s, %d bytes:\n     got % x\n   Linux % x", row.name, size, got, want)
			}
		}
	}
}
