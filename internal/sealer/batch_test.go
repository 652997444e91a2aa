package sealer

import (
	"bytes"
	"slices"
	"testing"

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
		{name: "IPv6 underlay", change: func(_ int, s *single) { s.m.kind = kindSeal6 },
			want: []int{5}},
		{name: "another one's family", change: odd(func(s *single) { s.ip6 = true }),
			want: []int{2, 1, 2}},
		{name: "last one shorter", change: func(i int, s *single) { s.size -= i / 4 * 50 },
			want: []int{5}},
		{name: "shorter in the middle", change: odd(func(s *single) { s.size = 50 }),
			want: []int{3, 2}},
		{name: "longer in the middle", change: odd(func(s *single) { s.size = 150 }),
			want: []int{2, 2, 1}},
		{name: "of one size with their padding", size: 97,
			change: func(i int, s *single) { s.size += i & 1 }, want: []int{5}},
		{name: "more pieces than one frame has", n: 70, want: []int{64, 6}},
		{name: "more than 64 KiB", n: 50, size: 1400, want: []int{44, 6}},
		{name: "more than 64 KiB, IPv6 underlay", n: 50, size: 1448,
			change: func(_ int, s *single) { s.m.kind = kindSeal6 }, want: []int{43, 7}},
		{name: "another SA", change: odd(func(s *single) { s.m.sa = otherSA }),
			want: []int{2, 1, 2}},
		{name: "another identity", change: odd(func(s *single) { s.m.identity++ }),
			want: []int{2, 1, 2}},
		{name: "another underlay", change: odd(func(s *single) { s.m.kind = kindSeal6 }),
			want: []int{2, 1, 2}},
		{name: "another DSCP", change: odd(func(s *single) { s.tos = 0xb8 }), want: []int{2, 1, 2}},
		{name: "congestion marked", change: odd(func(s *single) { s.tos = 3 }),
			want: []int{2, 1, 2}},
		{name: "another flow", change: odd(func(s *single) { s.from++ }), want: []int{2, 1, 2}},
		{name: "numbers left out", change: func(i int, s *single) { s.seq += uint64(i * 10) },
			want: []int{5}, counts: []int{45}},
		{name: "numbers that end where count does", n: 2,
			change: func(i int, s *single) { s.seq += uint64(i * 253) }, want: []int{2},
			counts: []int{255}},
		{name: "numbers beyond count", n: 2,
			change: func(i int, s *single) { s.seq += uint64(i * 254) }, want: []int{1, 1}},
		{name: "numbers across 2^32", change: func(_ int, s *single) { s.seq += 1<<32 - 102 },
			want: []int{5}},
		{name: "numbers that overtook", change: odd(func(s *single) { s.seq = 99 }),
			want: []int{5}},
		{name: "the highest first", change: func(i int, s *single) { s.seq = uint64(200 - i) },
			want: []int{5}, counts: []int{1}},
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
				t.Errorf("frames of %v pieces, counts %v; want %v, %v", want, counts, row.want,
					row.counts)
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
	if m != wanted || len(ip) > maxIP || len(want) > 1 &&
		(v.gso != gsoUDP || v.size != len(esp[0])) {
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
		{"a number used again", used.frame(), []refusal{{testSA, control.ReasonSealFailed, 1}},
			[]int{4}},
		{"an SA without a key", func() []byte { s := used; s.m.sa = foreignSA; return s.frame() }(),
			[]refusal{{foreignSA, control.ReasonNoKey, 1}}, []int{4}},
		{"a large packet", large(300), nil, []int{7}},
		{"a large packet that ends short", large(210), nil, []int{4, 3}},
		{"what is no frame", make([]byte, headLen), nil, []int{4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			refused, sealed := refusalsOf(feed(e, out, plain[0], c.between, plain[1], plain[2],
				plain[3]))
			var got []int
			for _, f := range sealed {
				_, esp := pieces(t, f)
				got = append(got, len(esp))
			}
			if !slices.Equal(got, c.want) || !slices.Equal(refused, c.refused) {
				t.Errorf("frames of %v, want %v; refused %v, want %v", got, c.want, refused,
					c.refused)
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
	e.keys.drained.Store(e.keys.changes.Load()) // else it is refused
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
