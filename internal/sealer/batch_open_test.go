package sealer

import (
	"bytes"
	"slices"
	"testing"

	"weft.dev/weft/internal/sealer/control"
)

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
		{name: "last one shorter", change: func(i int, s *single) { s.size -= i / 4 * 50 },
			want: []int{5}},
		{name: "shorter in the middle", change: odd(func(s *single) { s.size = 50 }),
			want: []int{3, 2}},
		{name: "more packets than one has", n: 70, want: []int{64, 6}},
		{name: "more than 64 KiB", n: 50, size: 1400, want: []int{46, 4}},
		{name: "a number left out", change: func(i int, s *single) { s.seq += uint64(i / 3) },
			want: []int{3, 2}},
		{name: "numbers that overtook",
			change: func(i int, s *single) { s.seq -= uint64(i / 3 * 10) }, want: []int{3, 2}},
		{name: "another SA", change: odd(func(s *single) { s.m.sa = otherSA }),
			want: []int{2, 1, 2}},
		{name: "another identity", change: odd(func(s *single) { s.m.identity++ }),
			want: []int{2, 1, 2}},
		{name: "another flow", change: odd(func(s *single) { s.from++ }), want: []int{2, 1, 2}},
		{name: "another DSCP", change: odd(func(s *single) { s.tos = 0xb8 }), want: []int{2, 1, 2}},
		{name: "the other family", change: odd(func(s *single) { s.ip6 = true }),
			want: []int{2, 1, 2}},
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
				if first := all[len(want)]; m.seq != first.seq || m.sa != first.m.sa ||
					m.identity != first.m.identity {
					t.Errorf("%+v, want %+v", m, first)
				}
				counts = append(counts, int(m.count))
				for range m.count {
					want = append(want, all[len(want)].ip())
				}
			}
			if !slices.Equal(counts, row.want) || len(refused) != 0 ||
				!equalAll(segmentsOf(t, opened), want) {
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
		{"forged", [][]byte{one[0], one[1], forged, one[2], one[3]},
			[]refusal{{testSA, control.ReasonAuth, 1}}, 0, []int{4}},
		{"doubled", [][]byte{one[0], one[1], one[1], one[2]},
			[]refusal{{testSA, control.ReasonReplayed, 1}}, 0, []int{3}},
		{"malformed", [][]byte{one[0], wrap(false, 0, 99, esp(1)[:40]), one[1]},
			[]refusal{{testSA, control.ReasonMalformed, 1}}, 0, []int{2}},
		{"one to be sealed", [][]byte{one[0], none, one[1]}, nil, 1, []int{2}},
		{"merged",
			[][]byte{one[0], wrap(false, 0, 99, esp(1), esp(2), esp(3)), one[4],
				wrap(false, 0, 99, esp(5))}, nil, 0, []int{6}},
		{"congestion on the way", [][]byte{one[0], wrap(false, 2, 99, esp(1)), one[2]}, nil, 0,
			[]int{3}},
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
			if !slices.Equal(got, c.want) || !slices.Equal(refused, c.refused) ||
				sealed != c.sealed || !equalAll(segmentsOf(t, opened), want) {
				t.Errorf("glued %v, want %v; refused %v, want %v; sealed %d", got, c.want, refused,
					c.refused, sealed)
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
	if len(refused) != 0 || len(opened) < 2 || len(opened) > 8 ||
		!equalAll(segmentsOf(t, opened), want) {
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
