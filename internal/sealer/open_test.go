package sealer

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"weft.dev/weft/internal/sealer/control"
	"weft.dev/weft/test/espref"
)

const (
	otherSA   = testNode<<10 | 4<<6 | 7     // another epoch of the same node
	foreignSA = (testNode+1)<<10 | 3<<6 | 7 // of another node
)

// wrap puts pieces into one outer packet, as GRO merges what came after another.
func wrap(ip6 bool, tos uint8, seq uint64, esp ...[]byte) []byte {
	from, to := netip.MustParseAddrPort("192.0.2.1:33000"), netip.MustParseAddrPort("192.0.2.2:4500")
	if ip6 {
		from, to = netip.MustParseAddrPort("[2001:db8::1]:33000"), netip.MustParseAddrPort("[2001:db8::2]:4500")
	}
	ip := espref.Outer{From: from, To: to}.Wrap(slices.Concat(esp...))
	if ip6 {
		ip[0], ip[1] = ip[0]|tos>>4, ip[1]|tos<<4
	} else {
		ip[1] = tos
	}
	v := vnet{}
	if len(esp) > 1 {
		v.gso, v.size = gsoUDP, len(esp[0])
	}
	return frame(v, meta{kind: kindOpen, count: 1, sa: testSA, seq: seq}, ip)
}

// five are five pieces that glue.
func five(t testing.TB, first uint64) (esp, inner [][]byte) {
	t.Helper()
	return fiveOf(t, first, 1000)
}

func fiveOf(t testing.TB, first uint64, size int) (esp, inner [][]byte) {
	t.Helper()
	for i := range 5 {
		p := podPacket(false)
		p.ID = uint16(i)
		ip := segment(p, tcp{seq: uint32(size * i), flags: tcpACK}, pattern(size))
		piece, err := reference(testSA).Seal(first+uint64(i), ip)
		if err != nil {
			t.Fatal(err)
		}
		esp, inner = append(esp, piece), append(inner, ip)
	}
	return esp, inner
}

// text seals any text, as long as a piece of five.
func sealText(t testing.TB, id uint32, seq uint64, text []byte) []byte {
	t.Helper()
	esp, err := reference(id).SealText(seq, seq, text)
	if err != nil {
		t.Fatal(err)
	}
	return esp
}

// TestOpenHostile: a bad piece in the middle of a merged packet costs itself alone, by its name.
func TestOpenHostile(t *testing.T) {
	inner := segment(podPacket(false), tcp{seq: 2000, flags: tcpACK}, pattern(1000))
	padded := func(change func(text []byte) []byte) func(t *testing.T, esp [][]byte) []byte {
		return func(t *testing.T, _ [][]byte) []byte {
			return sealText(t, testSA, 12, change(append(bytes.Clone(inner), 1, 2, 2, 4)))
		}
	}
	for _, c := range []struct {
		name   string
		bad    func(t *testing.T, esp [][]byte) []byte
		sa     uint32
		reason control.Reason
	}{
		{"forged tag", func(_ *testing.T, esp [][]byte) []byte { flip(&esp[2][len(esp[2])-1]); return esp[2] }, testSA, control.ReasonAuth},
		{"forged text", func(_ *testing.T, esp [][]byte) []byte { flip(&esp[2][100]); return esp[2] }, testSA, control.ReasonAuth},
		{"forged IV", func(_ *testing.T, esp [][]byte) []byte { flip(&esp[2][9]); return esp[2] }, testSA, control.ReasonAuth},
		{"forged identity", func(_ *testing.T, esp [][]byte) []byte { esp[2][3]++; return esp[2] }, testSA, control.ReasonAuth},
		{"forged number", func(_ *testing.T, esp [][]byte) []byte { esp[2][7] = 200; return esp[2] }, testSA, control.ReasonAuth},
		{"forged number far ahead", func(_ *testing.T, esp [][]byte) []byte { esp[2][4] = 0x7f; return esp[2] }, testSA, control.ReasonAuth},
		{"doubled", func(_ *testing.T, esp [][]byte) []byte { return esp[1] }, testSA, control.ReasonReplayed},
		{"of another node", func(t *testing.T, _ [][]byte) []byte {
			esp, _ := reference(foreignSA).Seal(12, inner)
			return esp
		}, testSA, control.ReasonAuth},
		{"of an SA without a key", func(_ *testing.T, esp [][]byte) []byte { esp[2][0] ^= 0x50; return esp[2] },
			testNode<<10 | (3^5)<<6 | 7, control.ReasonNoKey},
		{"sealed for another SA", func(_ *testing.T, esp [][]byte) []byte { esp[2][0] ^= 0x70; return esp[2] }, otherSA, control.ReasonAuth},
		{"SPI 0", func(_ *testing.T, esp [][]byte) []byte { clear(esp[2][:4]); return esp[2] }, testNode << 10, control.ReasonNoKey},
		{"padding of other bytes", padded(func(b []byte) []byte { b[len(b)-4] = 9; return b }), testSA, control.ReasonMalformed},
		{"padding longer than the text", padded(func(b []byte) []byte { b[len(b)-2] = 255; return b }), testSA, control.ReasonMalformed},
		{"next header that is none", padded(func(b []byte) []byte { b[len(b)-1] = 59; return b }), testSA, control.ReasonMalformed},
		{"next header of the other family", padded(func(b []byte) []byte { b[len(b)-1] = 41; return b }), testSA, control.ReasonMalformed},
		{"version of the other family", padded(func(b []byte) []byte { b[0] = 0x65; return b }), testSA, control.ReasonMalformed},
		{"inner length beyond the text", padded(func(b []byte) []byte { be.PutUint16(b[2:], 1041); return b }), testSA, control.ReasonMalformed},
		{"inner length 65535", padded(func(b []byte) []byte { be.PutUint16(b[2:], 65535); return b }), testSA, control.ReasonMalformed},
		{"inner length within the header", padded(func(b []byte) []byte { be.PutUint16(b[2:], 19); return b }), testSA, control.ReasonMalformed},
		{"inner header length beyond", padded(func(b []byte) []byte { b[0] = 0x44; return b }), testSA, control.ReasonMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA, otherSA, foreignSA)
			esp, want := five(t, 10)
			esp[2] = c.bad(t, esp)
			if len(esp[2]) != len(esp[0]) {
				t.Fatalf("piece of %d bytes among such of %d", len(esp[2]), len(esp[0]))
			}
			refused, frames := refusalsOf(give(e, out, wrap(false, 0, 9, esp...)))
			if fmt.Sprint(refused) != fmt.Sprint([]refusal{{c.sa, c.reason, 1}}) {
				t.Errorf("refused %v, want %v", refused, c.reason)
			}
			if e.stats.open.refused[c.reason].Load() != 1 {
				t.Error("not counted")
			}
			if got := segmentsOf(t, frames); !equalAll(got, slices.Concat(want[:2], want[3:])) {
				t.Errorf("%d of the 4 others arrive", len(got))
			}
		})
	}
}

func equalAll(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

// segmentsOf cuts opened frames into the packets that they were glued of.
func segmentsOf(t testing.TB, frames [][]byte) (packets [][]byte) {
	t.Helper()
	for _, f := range frames {
		v, m, ip := split(f)
		var c cutter
		p := append(bytes.Clone(ip), make([]byte, slack)...)
		if !c.begin(p, len(ip), v) || c.count != int(m.count) {
			t.Fatalf("an opened frame that cannot be cut: %+v %+v", v, m)
		}
		for i := range c.count {
			at, length := c.segment(i)
			packets = append(packets, bytes.Clone(p[at:at+length]))
		}
	}
	return packets
}

// TestOpenMixed: pieces of several SAs in one frame are each judged by their own.
func TestOpenMixed(t *testing.T) {
	e, out := testEngine(t, testSA, otherSA)
	esp, want := five(t, 10)
	for i := 3; i < 5; i++ {
		esp[i], _ = reference(otherSA).Seal(uint64(10+i), want[i])
	}
	refused, frames := refusalsOf(give(e, out, wrap(true, 0, 9, esp...)))
	if len(refused) != 0 || len(frames) != 2 {
		t.Fatalf("refused %v, %d frames", refused, len(frames))
	}
	for i, want := range []meta{{kindOpened, 3, testSA, testIdentity, 10}, {kindOpened, 2, otherSA, testIdentity, 13}} {
		if _, m, _ := split(frames[i]); m != want {
			t.Errorf("frame %d: %+v, want %+v", i, m, want)
		}
	}
	if !equalAll(segmentsOf(t, frames), want) {
		t.Error("other packets")
	}
}

// TestOpenGap: what is glued has consecutive numbers, so that the hooks can take them into their
// window.
func TestOpenGap(t *testing.T) {
	e, out := testEngine(t, testSA)
	esp, inner := five(t, 10)
	esp[3], _ = reference(testSA).Seal(14, inner[3])
	esp[4], _ = reference(testSA).Seal(13, inner[4])
	_, frames := refusalsOf(give(e, out, wrap(false, 0, 9, esp...)))
	var got []meta
	for _, f := range frames {
		_, m, _ := split(f)
		got = append(got, m)
	}
	want := []meta{{kindOpened, 3, testSA, testIdentity, 10}, {kindOpened, 1, testSA, testIdentity, 14}, {kindOpened, 1, testSA, testIdentity, 13}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestOpenIdentities: what one identity sent is not glued to what another did.
func TestOpenIdentities(t *testing.T) {
	e, out := testEngine(t, testSA)
	esp, inner := five(t, 10)
	other := reference(testSA)
	other.SPI ^= 1
	for i := 2; i < 5; i++ {
		esp[i], _ = other.Seal(uint64(10+i), inner[i])
	}
	_, frames := refusalsOf(give(e, out, wrap(false, 0, 9, esp...)))
	var got []meta
	for _, f := range frames {
		_, m, _ := split(f)
		got = append(got, m)
	}
	want := []meta{{kindOpened, 2, testSA, testIdentity, 10}, {kindOpened, 3, testSA, testIdentity ^ 1, 12}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestOpenFrames: outer packets that are not what they should be.
func TestOpenFrames(t *testing.T) {
	esp, _ := five(t, 10)
	good := wrap(false, 0, 9, esp...)
	six := wrap(true, 0, 9, esp...)
	change := func(f []byte, with func(v *vnet, m *meta, ip []byte)) []byte {
		v, m, ip := split(bytes.Clone(f))
		with(&v, &m, ip)
		return frame(v, m, ip)
	}
	malformed := []refusal{{testSA, control.ReasonMalformed, 1}}
	for _, c := range []struct {
		name    string
		frame   []byte
		want    []refusal
		opened  int
		ignored uint64
	}{
		{"good", good, nil, 5, 0},
		{"good, IPv6", six, nil, 5, 0},
		{"one piece", wrap(false, 0, 9, esp[0]), nil, 1, 0},
		{"the last one shorter", wrap(false, 0, 9, esp[0], shortPiece(t, 11)), nil, 2, 0},
		{"the last one cut off", wrap(false, 0, 9, esp[0], esp[1][:500]), []refusal{{testSA, control.ReasonAuth, 1}}, 1, 0},
		{"the last one not aligned", wrap(false, 0, 9, esp[0], esp[1][:501]), malformed, 1, 0},
		{"the last one of a few bytes", wrap(false, 0, 9, esp[0], esp[1][:8]), malformed, 1, 0},
		{"pieces of 0 bytes", change(good, func(v *vnet, _ *meta, _ []byte) { v.size = 0 }), malformed, 0, 0},
		{"pieces of 1 byte", change(good, func(v *vnet, _ *meta, _ []byte) { v.size = 1 }), malformed, 0, 0},
		{"pieces of 55 bytes", change(good, func(v *vnet, _ *meta, _ []byte) { v.size = minPiece - 1 }), malformed, 0, 0},
		{"pieces of 65535 bytes", change(good, func(v *vnet, _ *meta, _ []byte) { v.size = 65535 }), []refusal{{testSA, control.ReasonAuth, 1}}, 0, 0},
		{"GSO of TCP", change(good, func(v *vnet, _ *meta, _ []byte) { v.gso = gsoTCP4 }), malformed, 0, 0},
		{"UDP longer than the packet", change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[24:], be.Uint16(ip[24:])+1) }), malformed, 0, 0},
		{"UDP of 7 bytes", change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[24:], 7) }), malformed, 0, 0},
		{"UDP without payload", change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[24:], 8) }), malformed, 0, 0},
		{"IP longer than the frame", change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[2:], be.Uint16(ip[2:])+1) }), malformed, 0, 0},
		{"IP shorter than UDP says", change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[2:], 1000) }), malformed, 0, 0},
		{"IP of its header only", change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[2:], 20) }), malformed, 0, 0},
		{"IP options", change(good, func(_ *vnet, _ *meta, ip []byte) { ip[0] = 0x46 }), malformed, 0, 0},
		{"not UDP", change(good, func(_ *vnet, _ *meta, ip []byte) { ip[9] = protoTCP }), malformed, 0, 0},
		{"not UDP, IPv6", change(six, func(_ *vnet, _ *meta, ip []byte) { ip[6] = protoTCP }), malformed, 0, 0},
		{"IPv6 shorter than UDP says", change(six, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[4:], 1000) }), malformed, 0, 0},
		{"neither IPv4 nor IPv6", change(good, func(_ *vnet, _ *meta, ip []byte) { ip[0] = 0x75 }), malformed, 0, 0},
		{"kind 0", change(good, func(_ *vnet, m *meta, _ []byte) { m.kind = 0 }), nil, 0, 1},
		{"a kind of ours", change(good, func(_ *vnet, m *meta, _ []byte) { m.kind = kindOpened }), nil, 0, 1},
		{"kind 7", change(good, func(_ *vnet, m *meta, _ []byte) { m.kind = 7 }), nil, 0, 1},
		{"a frame of headers", good[:headLen], nil, 0, 1},
		{"a frame of 3 bytes", good[:3], nil, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			refused, frames := refusalsOf(give(e, out, c.frame))
			opened := 0
			for _, f := range frames {
				_, m, _ := split(f)
				opened += int(m.count)
			}
			if fmt.Sprint(refused) != fmt.Sprint(c.want) || opened != c.opened || e.stats.ignored.Load() != c.ignored {
				t.Errorf("refused %v, opened %d, ignored %d; want %v, %d, %d", refused, opened, e.stats.ignored.Load(), c.want, c.opened, c.ignored)
			}
		})
	}
}

func shortPiece(t *testing.T, seq uint64) []byte {
	t.Helper()
	p := podPacket(false)
	p.ID = 1
	esp, err := reference(testSA).Seal(seq, segment(p, tcp{seq: 1000, flags: tcpACK}, pattern(10)))
	if err != nil {
		t.Fatal(err)
	}
	return esp
}

// TestManyRefusals: a frame of forged pieces is answered by one.
func TestManyRefusals(t *testing.T) {
	e, out := testEngine(t, testSA)
	var esp [][]byte
	for i := range 600 {
		esp = append(esp, sealText(t, otherSA, uint64(i+1), make([]byte, minText)))
	}
	got := give(e, out, wrap(false, 0, 0, esp...))
	refused, _ := refusalsOf(got)
	want := []refusal{{otherSA, control.ReasonNoKey, 255}, {otherSA, control.ReasonNoKey, 255}, {otherSA, control.ReasonNoKey, 90}}
	if fmt.Sprint(refused) != fmt.Sprint(want) || len(got) != 3 {
		t.Errorf("%v", refused)
	}
	if f := got[0]; len(f) != headLen+ip4Len || be.Uint16(f[vnetLen+metaLen:]) != etherIP4 || !bytes.Equal(f[headLen:], make([]byte, ip4Len)) || decodeVnet(f) != (vnet{}) {
		t.Errorf("a refusal is % x", f)
	}
}

// TestCongestion: RFC 6040, table 4.
func TestCongestion(t *testing.T) {
	for _, ip6 := range []bool{false, true} {
		for outer := range uint8(4) {
			for inner := range uint8(4) {
				e, out := testEngine(t, testSA)
				p := podPacket(ip6)
				p.TOS = 0xb8 | inner
				ip := segment(p, tcp{flags: tcpACK}, pattern(10))
				esp, _ := reference(testSA).Seal(7, ip)
				refused, frames := refusalsOf(give(e, out, wrap(!ip6, 0x20|outer, 0, esp)))
				if outer == 3 && inner == 0 {
					if fmt.Sprint(refused) != fmt.Sprint([]refusal{{testSA, control.ReasonECN, 1}}) || len(frames) != 0 {
						t.Errorf("CE over not-ECT: refused %v, %d frames", refused, len(frames))
					}
					continue
				}
				if outer == 3 {
					p.TOS |= 3
				}
				want := segment(p, tcp{flags: tcpACK}, pattern(10))
				if len(frames) != 1 || !bytes.Equal(frames[0][headLen:], want) {
					t.Errorf("outer %d, inner %d, IPv6 %v: % x, want % x", outer, inner, ip6, frames[0][headLen:], want)
				}
			}
		}
	}
}

// TestHiddenLength: padding in front of the trailer's, as RFC 4303 section 2.7 has it, is left out.
func TestHiddenLength(t *testing.T) {
	e, out := testEngine(t, testSA)
	inner := segment(podPacket(false), tcp{flags: tcpACK}, pattern(10))
	text := append(append(bytes.Clone(inner), make([]byte, 100)...), 1, 2, 2, 4)
	text = append(text[:len(text)-4], []byte{1, 2, 2, 4}...)
	for len(text)%4 != 0 {
		text = slices.Insert(text, len(inner), 0)
	}
	_, frames := refusalsOf(give(e, out, wrap(false, 0, 0, sealText(t, testSA, 5, text))))
	if len(frames) != 1 || !bytes.Equal(frames[0][headLen:], inner) {
		t.Errorf("% x", frames)
	}
}

// TestAllPadding: a text that is a trailer and nothing else.
func TestAllPadding(t *testing.T) {
	for pad := range 64 {
		text := make([]byte, 0, 66)
		for i := range pad {
			text = append(text, byte(i+1))
		}
		text = append(text, byte(pad), nextIP4)
		if len(text)%4 != 0 || len(text) < minText {
			continue
		}
		e, out := testEngine(t, testSA)
		refused, _ := refusalsOf(give(e, out, wrap(false, 0, 0, sealText(t, testSA, 5, text))))
		if want := []refusal{{testSA, control.ReasonMalformed, 1}}; !slices.Equal(refused, want) {
			t.Errorf("padding of %d bytes: refused %v", pad, refused)
		}
	}
}
