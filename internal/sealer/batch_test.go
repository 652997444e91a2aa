package sealer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns/nettest"
	"weft.dev/weft/internal/sealer/control"
)

// single is a datagram that comes alone.
type single struct {
	seq  uint64
	size int // of its payload
	tos  uint8
	from uint16 // port
	ip6  bool
	id   uint16 // IPv4
	m    meta   // kind, SA and identity
}

func (s single) ip() []byte {
	p := podPacket(s.ip6)
	p.TOS = s.tos
	if !s.ip6 {
		p.ID = s.id
	}
	return p.UDP(s.from, 53, pattern(s.size)).IP()
}

func (s single) frame() []byte {
	m := s.m
	m.count, m.seq = 1, s.seq
	return frame(vnet{}, m, s.ip())
}

// stream is n datagrams of a flow, with numbers from 100 on.
func stream(n, size int, change func(i int, s *single)) (all []single) {
	for i := range n {
		s := single{
			seq: uint64(100 + i), size: size, from: 5000, id: uint16(i),
			m: meta{kind: kindSeal4, sa: testSA, identity: testIdentity},
		}
		if change != nil {
			change(i, &s)
		}
		all = append(all, s)
	}
	return all
}

func frames(all []single) (list [][]byte) {
	for _, s := range all {
		list = append(list, s.frame())
	}
	return list
}

// batchRow is a stream, and into how many pieces a frame it is put.
type batchRow struct {
	name   string
	n      int // 5 if 0
	size   int // 100 if 0
	change func(i int, s *single)
	want   []int
	counts []int // as the frames say, if other than want: numbers are left out
}

func odd(change func(s *single)) func(int, *single) {
	return func(i int, s *single) {
		if i == 2 {
			change(s)
		}
	}
}

func sealRows() []batchRow {
	return []batchRow{
		{name: "one", n: 1, want: []int{1}},
		{name: "all alike", want: []int{5}},
		{name: "of 1400 bytes", size: 1400, want: []int{5}},
		{name: "IPv6", change: func(_ int, s *single) { s.ip6 = true }, want: []int{5}},
		{name: "IPv6 underlay", change: func(_ int, s *single) { s.m.kind = kindSeal6 }, want: []int{5}},
		{name: "another one's family", change: odd(func(s *single) { s.ip6 = true }), want: []int{2, 1, 2}},
		{name: "last one shorter", change: func(i int, s *single) { s.size -= i / 4 * 50 }, want: []int{5}},
		{name: "shorter in the middle", change: odd(func(s *single) { s.size = 50 }), want: []int{3, 2}},
		{name: "longer in the middle", change: odd(func(s *single) { s.size = 150 }), want: []int{2, 2, 1}},
		{name: "of one size with their padding", size: 97, change: func(i int, s *single) { s.size += i & 1 }, want: []int{5}},
		{name: "more pieces than one frame has", n: 70, want: []int{64, 6}},
		{name: "more than 64 KiB", n: 50, size: 1400, want: []int{44, 6}},
		{name: "more than 64 KiB, IPv6 underlay", n: 50, size: 1448, change: func(_ int, s *single) { s.m.kind = kindSeal6 }, want: []int{43, 7}},
		{name: "another SA", change: odd(func(s *single) { s.m.sa = otherSA }), want: []int{2, 1, 2}},
		{name: "another identity", change: odd(func(s *single) { s.m.identity++ }), want: []int{2, 1, 2}},
		{name: "another underlay", change: odd(func(s *single) { s.m.kind = kindSeal6 }), want: []int{2, 1, 2}},
		{name: "another DSCP", change: odd(func(s *single) { s.tos = 0xb8 }), want: []int{2, 1, 2}},
		{name: "congestion marked", change: odd(func(s *single) { s.tos = 3 }), want: []int{2, 1, 2}},
		{name: "another flow", change: odd(func(s *single) { s.from++ }), want: []int{2, 1, 2}},
		{name: "numbers left out", change: func(i int, s *single) { s.seq += uint64(i * 10) }, want: []int{5}, counts: []int{45}},
		{name: "numbers that end where count does", n: 2, change: func(i int, s *single) { s.seq += uint64(i * 253) }, want: []int{2}, counts: []int{255}},
		{name: "numbers beyond count", n: 2, change: func(i int, s *single) { s.seq += uint64(i * 254) }, want: []int{1, 1}},
		{name: "numbers across 2^32", change: func(_ int, s *single) { s.seq += 1<<32 - 102 }, want: []int{5}},
		{name: "numbers that overtook", change: odd(func(s *single) { s.seq = 99 }), want: []int{5}},
		{name: "the highest first", change: func(i int, s *single) { s.seq = uint64(200 - i) }, want: []int{5}, counts: []int{1}},
	}
}

// TestSealJoins: what comes singly leaves together where it may, and in order.
func TestSealJoins(t *testing.T) {
	for _, row := range sealRows() {
		t.Run(row.name, func(t *testing.T) {
			n, size := max(row.n, 1), row.size
			if row.n == 0 {
				n = 5
			}
			if size == 0 {
				size = 100
			}
			e, out := testEngine(t, testSA, otherSA)
			all := stream(n, size, row.change)
			var want, counts []int
			for _, f := range feed(e, out, frames(all)...) {
				_, m, _ := split(f)
				_, esp := pieces(t, f)
				checkSealed(t, f, all[:len(esp)])
				want, counts = append(want, len(esp)), append(counts, int(m.count))
				all = all[len(esp):]
			}
			if row.counts == nil {
				row.counts = row.want
			}
			if !slices.Equal(want, row.want) || !slices.Equal(counts, row.counts) || len(all) != 0 {
				t.Errorf("frames of %v pieces, counts %v; want %v, %v", want, counts, row.want, row.counts)
			}
		})
	}
}

// checkSealed compares a frame with the datagrams that are to be in it.
func checkSealed(t *testing.T, f []byte, want []single) {
	t.Helper()
	v, m, ip := split(f)
	outer, esp := pieces(t, f)
	top := uint64(0)
	for i, s := range want {
		sa := reference(s.m.sa)
		sa.SPI = s.m.spi()
		p, err := sa.Open(esp[i], uint32(s.seq>>32))
		if err != nil || p.Seq != s.seq || !bytes.Equal(p.Inner, s.ip()) {
			t.Errorf("piece %d: number %d, want %d: %v", i, p.Seq, s.seq, err)
		}
		if trafficClass(outer) != s.tos {
			t.Errorf("piece %d: traffic class %#x, not %#x", i, trafficClass(outer), s.tos)
		}
		top = max(top, s.seq)
	}
	first := want[0]
	wanted := meta{kindSealed, uint8(top - first.seq + 1), first.m.sa, first.m.identity, first.seq}
	if m != wanted || len(ip) > maxIP || len(want) > 1 && (v.gso != gsoUDP || v.size != len(esp[0])) {
		t.Errorf("%+v, want %+v; %+v", m, wanted, v)
	}
}

// TestSealJoinsOthers: what is refused parts nothing and costs itself alone; large packets join.
func TestSealJoinsOthers(t *testing.T) {
	plain := frames(stream(4, 100, func(i int, s *single) { s.seq += uint64(i * 5) }))
	large := func(bytes int) []byte { return cutRow{udp: true, size: 100, bytes: bytes}.frame(102) }
	used := stream(1, 100, nil)[0]
	for _, c := range []struct {
		name    string
		between []byte
		refused []refusal
		want    []int
	}{
		{"a number used again", used.frame(), []refusal{{testSA, control.ReasonSealFailed, 1}}, []int{4}},
		{"an SA without a key", func() []byte { s := used; s.m.sa = strangerSA; return s.frame() }(),
			[]refusal{{strangerSA, control.ReasonNoKey, 1}}, []int{4}},
		{"a large packet", large(300), nil, []int{7}},
		{"a large packet that ends short", large(210), nil, []int{4, 3}},
		{"what is no frame", make([]byte, headLen), nil, []int{4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			refused, sealed := refusalsOf(feed(e, out, plain[0], c.between, plain[1], plain[2], plain[3]))
			var got []int
			for _, f := range sealed {
				_, esp := pieces(t, f)
				got = append(got, len(esp))
			}
			if !slices.Equal(got, c.want) || !slices.Equal(refused, c.refused) {
				t.Errorf("frames of %v, want %v; refused %v, want %v", got, c.want, refused, c.refused)
			}
		})
	}
}

// TestSealNewKey: what was sealed with an SA's former key does not leave with the next one's
// numbers.
func TestSealNewKey(t *testing.T) {
	e, out := testEngine(t, testSA)
	f, all := newFeeder(e), frames(stream(4, 100, nil))
	f.frame(all[0])
	f.frame(all[1])
	next := testKey(true, testSA)
	next.Fingerprint++
	if err := e.keys.install([]control.Key{next}); err != nil {
		t.Fatal(err)
	}
	f.frame(all[2])
	f.frame(all[3])
	e.flush()
	if got := metas(out.take()); len(got) != 2 || got[0].seq != 100 || got[1].seq != 102 {
		t.Errorf("%+v", got)
	}
}

func metas(frames [][]byte) (list []meta) {
	for _, f := range frames {
		_, m, _ := split(f)
		list = append(list, m)
	}
	return list
}

// opens are outer packets of one piece each, of datagrams.
func opens(t testing.TB, all []single) (list [][]byte) {
	t.Helper()
	for _, s := range all {
		sa := reference(s.m.sa)
		sa.SPI = s.m.spi()
		esp, err := sa.Seal(s.seq, s.ip())
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, wrap(false, 0, 99, esp))
	}
	return list
}

// TestOpenJoins: what comes singly is glued where a merged packet's pieces are: TestGlueAsLinux.
func TestOpenJoins(t *testing.T) {
	for _, row := range []batchRow{
		{name: "one", n: 1, want: []int{1}},
		{name: "all alike", want: []int{5}},
		{name: "IPv6", change: func(_ int, s *single) { s.ip6 = true }, want: []int{5}},
		{name: "last one shorter", change: func(i int, s *single) { s.size -= i / 4 * 50 }, want: []int{5}},
		{name: "shorter in the middle", change: odd(func(s *single) { s.size = 50 }), want: []int{3, 2}},
		{name: "more packets than one has", n: 70, want: []int{64, 6}},
		{name: "more than 64 KiB", n: 50, size: 1400, want: []int{46, 4}},
		{name: "a number left out", change: func(i int, s *single) { s.seq += uint64(i / 3) }, want: []int{3, 2}},
		{name: "numbers that overtook", change: func(i int, s *single) { s.seq -= uint64(i / 3 * 10) }, want: []int{3, 2}},
		{name: "another SA", change: odd(func(s *single) { s.m.sa = otherSA }), want: []int{2, 1, 2}},
		{name: "another identity", change: odd(func(s *single) { s.m.identity++ }), want: []int{2, 1, 2}},
		{name: "another flow", change: odd(func(s *single) { s.from++ }), want: []int{2, 1, 2}},
		{name: "another DSCP", change: odd(func(s *single) { s.tos = 0xb8 }), want: []int{2, 1, 2}},
		{name: "the other family", change: odd(func(s *single) { s.ip6 = true }), want: []int{2, 1, 2}},
	} {
		t.Run(row.name, func(t *testing.T) {
			n, size := max(row.n, 1), row.size
			if row.n == 0 {
				n = 5
			}
			if size == 0 {
				size = 100
			}
			e, out := testEngine(t, testSA, otherSA)
			all := stream(n, size, row.change)
			refused, opened := refusalsOf(feed(e, out, opens(t, all)...))
			var counts []int
			var want [][]byte
			for _, m := range metas(opened) {
				if first := all[len(want)]; m.seq != first.seq || m.sa != first.m.sa || m.identity != first.m.identity {
					t.Errorf("%+v, want %+v", m, first)
				}
				counts = append(counts, int(m.count))
				for range m.count {
					want = append(want, all[len(want)].ip())
				}
			}
			if !slices.Equal(counts, row.want) || len(refused) != 0 || !equalAll(segmentsOf(t, opened), want) {
				t.Errorf("glued %v, want %v; refused %v", counts, row.want, refused)
			}
		})
	}
}

// TestOpenJoinsOthers: a bad one in between costs itself alone; what goes the other way parts
// nothing; merged packets join.
func TestOpenJoinsOthers(t *testing.T) {
	all := stream(6, 100, nil)
	one := opens(t, all)
	forged := bytes.Clone(opens(t, stream(1, 100, func(_ int, s *single) { s.seq = 102 }))[0])
	flip(&forged[len(forged)-1])
	esp := func(i int) []byte { return one[i][headLen+ip4Len+udpLen:] }
	none := frames(stream(1, 100, nil))[0]
	for _, c := range []struct {
		name    string
		frames  [][]byte
		refused []refusal
		sealed  int
		want    []int
	}{
		{"forged", [][]byte{one[0], one[1], forged, one[2], one[3]}, []refusal{{testSA, control.ReasonAuth, 1}}, 0, []int{4}},
		{"doubled", [][]byte{one[0], one[1], one[1], one[2]}, []refusal{{testSA, control.ReasonReplayed, 1}}, 0, []int{3}},
		{"malformed", [][]byte{one[0], wrap(false, 0, 99, esp(1)[:40]), one[1]}, []refusal{{testSA, control.ReasonMalformed, 1}}, 0, []int{2}},
		{"one to be sealed", [][]byte{one[0], none, one[1]}, nil, 1, []int{2}},
		{"merged", [][]byte{one[0], wrap(false, 0, 99, esp(1), esp(2), esp(3)), one[4], wrap(false, 0, 99, esp(5))}, nil, 0, []int{6}},
		{"congestion on the way", [][]byte{one[0], wrap(false, 2, 99, esp(1)), one[2]}, nil, 0, []int{3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			refused, rest := refusalsOf(feed(e, out, c.frames...))
			var got []int
			var opened [][]byte
			sealed := 0
			for _, f := range rest {
				if _, m, _ := split(f); m.kind == kindOpened {
					got, opened = append(got, int(m.count)), append(opened, f)
				} else {
					sealed++
				}
			}
			var want [][]byte
			for _, s := range all[:c.want[0]] {
				want = append(want, s.ip())
			}
			if !slices.Equal(got, c.want) || !slices.Equal(refused, c.refused) || sealed != c.sealed || !equalAll(segmentsOf(t, opened), want) {
				t.Errorf("glued %v, want %v; refused %v, want %v; sealed %d", got, c.want, refused, c.refused, sealed)
			}
		})
	}
}

// TestArena: frames in which there is far more than what is opened need the worker's room, and what
// is glued of them stays whole.
func TestArena(t *testing.T) {
	e, out := testEngine(t, testSA)
	all := stream(40, 100, nil)
	var list, want [][]byte
	for i, s := range all {
		text := append(s.ip(), make([]byte, 1000*i+2-len(s.ip())&3)...)
		esp := sealText(t, testSA, s.seq, append(text, 0, nextIP4))
		list, want = append(list, wrap(false, 0, 99, esp)), append(want, s.ip())
	}
	refused, opened := refusalsOf(feed(e, out, list...))
	if len(refused) != 0 || len(opened) < 2 || len(opened) > 8 || !equalAll(segmentsOf(t, opened), want) {
		t.Errorf("%d frames, refused %v", len(opened), refused)
	}
}

// TestJoinsTCP: segments that come singly are glued as they are in a merged packet, and what ends a
// batch there has it leave at once.
func TestJoinsTCP(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags uint8
		size  int // of the third
		at    int // how many were written once the third had come
	}{
		{"goes on", tcpACK, 1000, 0},
		{"PSH", tcpACK | tcpPSH, 1000, 1},
		{"short", tcpACK, 999, 1},
		{"to be left alone", tcpACK | tcpURG, 1000, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			f := newFeeder(e)
			for i := range 3 {
				h, p, size := tcp{seq: uint32(1000 * i), flags: tcpACK}, podPacket(false), 1000
				p.ID = uint16(i)
				if i == 2 {
					h.flags, size = c.flags, c.size
				}
				esp, _ := reference(testSA).Seal(uint64(10+i), segment(p, h, pattern(size)))
				f.frame(wrap(false, 0, 9, esp))
				if i < 2 && len(out.frames) != 0 {
					t.Error("left before its time")
				}
			}
			if len(out.frames) != c.at {
				t.Errorf("%d frames, want %d", len(out.frames), c.at)
			}
		})
	}
}

// TestWaitsBounded: what waits to become more leaves within a bounded number of frames, though
// others keep coming and none of them joins it.
func TestWaitsBounded(t *testing.T) {
	for _, c := range []struct {
		name          string
		first         []byte
		kind, another kind
	}{
		{"to be sealed", frames(stream(1, 100, nil))[0], kindSealed, kindOpened},
		{"opened", opens(t, stream(1, 100, nil))[0], kindOpened, kindSealed},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			f := newFeeder(e)
			f.frame(c.first)
			others := stream(3*maxWaiting, 100, func(_ int, s *single) { s.seq += 1000 })
			list := opens(t, others)
			if c.another == kindSealed {
				list = frames(others)
			}
			for i, other := range list {
				f.frame(other)
				if i == maxWaiting {
					break
				}
			}
			if !slices.ContainsFunc(metas(out.take()), func(m meta) bool { return m.kind == c.kind }) {
				t.Errorf("nothing after %d frames", maxWaiting)
			}
		})
	}
}

// TestOrder: datagrams of some flows, alone and as large packets, of all sizes, come out in order and
// whole, whatever has joined what.
func TestOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	e, out := testEngine(t, testSA)
	var input [][]byte
	seq := uint64(1)
	for range 600 {
		row := cutRow{udp: true, size: []int{40, 64, 512, 1400}[random.IntN(4)], id: uint16(seq)}
		row.bytes = row.size
		switch random.IntN(4) {
		case 0:
			row.bytes = row.size * (1 + random.IntN(44))
		case 1:
			row.bytes = 1 + random.IntN(row.size*4)
		}
		f := row.frame(seq)
		if v, m, ip := split(f); m.count == 1 {
			f = frame(vnet{unfinished: true, start: v.start, offset: v.offset}, m, ip)
		}
		seq += uint64((row.bytes + row.size - 1) / row.size)
		input = append(input, f)
	}
	var want [][]byte
	for _, f := range input {
		v, _, ip := split(bytes.Clone(f))
		var c cutter
		p := append(bytes.Clone(ip), make([]byte, slack)...)
		if !c.begin(p, len(ip), v) {
			t.Fatal("cannot be cut")
		}
		for i := range c.count {
			at, length := c.segment(i)
			want = append(want, bytes.Clone(p[at:at+length]))
		}
	}
	sealed := feed(e, out, input...)
	var outers [][]byte
	for _, f := range sealed {
		v, m, ip := split(f)
		outers = append(outers, frame(v, meta{kind: kindOpen, count: 1, sa: m.sa, seq: m.seq}, ip))
	}
	refused, opened := refusalsOf(feed(e, out, outers...))
	if got := segmentsOf(t, opened); len(refused) != 0 || !equalAll(got, want) {
		t.Errorf("%d packets of %d, or in another order; refused %v", len(got), len(want), refused)
	}
	if len(sealed) >= len(input) || len(opened) >= len(input) {
		t.Errorf("%d frames sealed, %d opened, of %d", len(sealed), len(opened), len(input))
	}
}

// testWorker is the worker on a tap of its own, to be run by hand.
func testWorker(t testing.TB) (*worker, *hooks) {
	t.Helper()
	ns := nettest.New(t, "worker")
	file := testTap(t, ns)
	if err := unix.SetNonblock(int(file.Fd()), true); err != nil {
		t.Fatal(err)
	}
	e, _ := testEngine(t, testSA)
	e.out = tap{int(file.Fd())}
	return &worker{tap: tap{int(file.Fd())}, engine: e}, newHooks(t, ns, tapName)
}

// drain works on what the tap has.
func drain(t testing.TB, w *worker, arena []byte) {
	t.Helper()
	for at := 0; ; {
		n, errno := w.tap.read(arena[at : at+readLen])
		if errno == unix.EAGAIN {
			w.engine.flush()
			return
		}
		if errno != 0 {
			t.Fatal(errno)
		}
		at = w.frame(arena, at, n)
	}
}

// TestJoinedOnTap: Linux takes what has joined, cut as it says it is.
func TestJoinedOnTap(t *testing.T) {
	w, h := testWorker(t)
	arena := make([]byte, arenaLen)
	const n = 50
	for _, size := range []int{1, 64, 512, 1400} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			all := stream(n, size, func(i int, s *single) { s.seq = uint64(size*1000 + i) })
			for _, f := range frames(all) {
				h.send(f)
			}
			drain(t, w, arena)
			var sealed [][]byte
			for got := 0; got < n; {
				f := h.receive()
				if f == nil {
					t.Fatalf("%d of %d are sealed", got, n)
				}
				_, m, _ := split(f)
				checkSealed(t, f, all[got:got+int(m.count)])
				got += int(m.count)
				sealed = append(sealed, f)
			}
			for _, f := range sealed {
				v, m, ip := split(f)
				h.send(frame(v, meta{kind: kindOpen, count: 1, sa: testSA, seq: m.seq}, ip))
			}
			drain(t, w, arena)
			var opened, want [][]byte
			for _, s := range all {
				want = append(want, s.ip())
			}
			for got := 0; got < n; {
				f := h.receive()
				if f == nil {
					t.Fatalf("%d of %d are opened", got, n)
				}
				_, m, _ := split(f)
				got += int(m.count)
				opened = append(opened, f)
			}
			if len(sealed) > 2 || len(opened) > 2 || !equalAll(segmentsOf(t, opened), want) {
				t.Errorf("%d frames sealed, %d opened", len(sealed), len(opened))
			}
		})
	}
}

// TestEnd: what a worker was at when it was told to end leaves.
func TestEnd(t *testing.T) {
	w, h := testWorker(t)
	arena, one := make([]byte, arenaLen), stream(1, 100, nil)
	w.frame(arena, 0, copy(arena, one[0].frame()))
	w.stop.Store(true)
	if err := w.run(); err != nil {
		t.Fatal(err)
	}
	if f := h.receive(); f == nil {
		t.Error("nothing comes")
	} else {
		checkSealed(t, f, one)
	}
}

// TestLone: what is alone comes back without another one behind it.
func TestLone(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	for i, one := range stream(3, 100, nil) {
		s.hooks.send(one.frame())
		f := s.hooks.receive()
		if f == nil {
			t.Fatalf("packet %d does not come", i)
		}
		checkSealed(t, f, []single{one})
		v, m, ip := split(f)
		s.hooks.send(frame(v, meta{kind: kindOpen, count: 1, sa: testSA, seq: m.seq}, ip))
		if f = s.hooks.receive(); f == nil || !bytes.Equal(f[headLen:], one.ip()) {
			t.Fatalf("packet %d is not opened", i)
		}
	}
}
