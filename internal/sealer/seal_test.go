package sealer

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"weft.dev/weft/internal/sealer/control"
)

// TestKnownAnswer: every byte of a sealed frame, computed here from the RFCs by hand and with
// nothing of the engine.
func TestKnownAnswer(t *testing.T) {
	for _, c := range []struct {
		name  string
		kind  kind
		ip6   bool
		seq   uint64
		data  int
		tos   uint8
		outer string // hexadecimal, without lengths, ports and flow label, which are filled in
		next  byte
	}{
		{"IPv4 in IPv4", kindSeal4, false, 1, 6, 0xb9,
			"45b9LLLL0000400040110000" + "0000000000000000", 4},
		{"IPv6 in IPv4", kindSeal4, true, 1<<32 - 1, 7, 2,
			"4502LLLL0000400040110000" + "0000000000000000", 41},
		{"IPv4 in IPv6", kindSeal6, false, 1 << 32, 8, 0xb9,
			"6b9FFFFFLLLL1140" + strings.Repeat("00", 32), 4},
		{"IPv6 in IPv6", kindSeal6, true, 1<<39 - 300, 9, 0,
			"600FFFFFLLLL1140" + strings.Repeat("00", 32), 41},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			p := podPacket(c.ip6)
			p.TOS = c.tos
			inner := segment(p, tcp{flags: tcpACK}, pattern(c.data))
			frames := give(e, out,
				frame(vnet{},
					meta{kind: c.kind, count: 1, sa: testSA, identity: testIdentity, seq: c.seq},
					inner))
			if len(frames) != 1 {
				t.Fatal(len(frames), "frames")
			}
			_, _, got := split(frames[0])
			hash := flowHash(inner)
			esp := sealedByHand(c.seq, inner, c.next)
			length := udpLen + len(esp)
			if c.kind == kindSeal4 {
				length += ip4Len
			}
			head := strings.NewReplacer("LLLL", fmt.Sprintf("%04x", length), "FFFFF",
				fmt.Sprintf("%05x", hash&0xfffff)).Replace(c.outer)
			head += fmt.Sprintf("%04x%04x%04x0000", 0x8000|(hash^3<<10)&0x3fff, testPort,
				udpLen+len(esp))
			if want := head + hex.EncodeToString(esp); hex.EncodeToString(got) != want {
				t.Errorf("\n got %x\nwant %s", got, want)
			}
		})
	}
}

// TestPortOfAnEpoch: no two epochs of a flow share a port, by which the wire would merge them.
func TestPortOfAnEpoch(t *testing.T) {
	for _, hash := range []uint32{0, 0xffffffff, 0x12345678} {
		seen := map[uint16]uint32{}
		for epoch := range uint32(16) {
			sa := testSA&^(15<<6) | epoch<<6
			port := sourcePort(hash, sa)
			if other, ok := seen[port]; ok || port>>14 != 2 {
				t.Errorf("flow %x has port %x in epochs %d and %d", hash, port, other, epoch)
			}
			if port != sourcePort(hash, sa^1<<12^1) {
				t.Errorf("flow %x, epoch %d: the port depends on more than the epoch", hash, epoch)
			}
			seen[port] = epoch
		}
	}
}

// sealedByHand is RFC 4303 and RFC 4106, with the numbers that testSA and testIdentity stand for.
func sealedByHand(seq uint64, inner []byte, next byte) []byte {
	key := testKey(true, testSA)
	text := bytes.Clone(inner)
	pad := byte(0)
	for (len(text)+2)%4 != 0 {
		pad++
		text = append(text, pad)
	}
	text = append(text, pad, next)
	spi := []byte{3<<4 | 7>>2, 7<<6&0xc0 | 0x2a, 0xbc, 0xde} // epoch 3, lane 7, identity 0x2abcde
	number := be.AppendUint64(nil, seq)
	block, _ := aes.NewCipher(key.Key[:])
	gcm, _ := cipher.NewGCM(block)
	head := append(append(bytes.Clone(spi), number[4:]...), number...)
	return gcm.Seal(head, append(bytes.Clone(key.Salt[:]), number...), text,
		append(bytes.Clone(spi), number...))
}

// TestSealedFrames: what is too long for one frame leaves in several, each with its own numbers.
func TestSealedFrames(t *testing.T) {
	for _, c := range []struct {
		name        string
		kind        kind
		size, bytes int
		want        []int
	}{
		{"one", kindSeal4, 1448, 1448, []int{1}},
		{"fits", kindSeal4, 1448, 30 * 1448, []int{30}},
		{"64 kB", kindSeal4, 1448, 45 * 1448, []int{42, 3}},
		{"64 kB, IPv6", kindSeal6, 1448, 45 * 1448, []int{42, 3}},
		{"64 pieces", kindSeal4, 100, 150 * 100, []int{64, 64, 22}},
		{"jumbo", kindSeal4, 8948, 7 * 8948, []int{7}},
		{"segments of 32 kB", kindSeal4, 32000, 64000, []int{2}},
		{"segments of 40 kB", kindSeal4, 40000, 60000, []int{1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			row := cutRow{size: c.size, bytes: min(c.bytes, 65535-40), tcp: tcp{flags: tcpACK}}
			f := row.frame(1000)
			_, m, ip := split(f)
			m.kind = c.kind
			seq := uint64(1000)
			frames := give(e, out, frame(decodeVnet(f), m, ip))
			var counts []int
			for _, f := range frames {
				v, m, ip := split(f)
				outer, esp := pieces(t, f)
				counts = append(counts, len(esp))
				if m.kind != kindSealed || int(m.count) != len(esp) || m.seq != seq ||
					m.sa != testSA || m.identity != testIdentity {
					t.Errorf("%+v", m)
				}
				if len(ip) > maxIP || !v.unfinished || v.offset != 6 ||
					v.start != etherLen+len(outer)-udpLen || (v.gso == gsoUDP) != (len(esp) > 1) {
					t.Errorf("%d bytes, %+v", len(ip), v)
				}
				seq += uint64(len(esp))
			}
			if fmt.Sprint(counts) != fmt.Sprint(c.want) {
				t.Errorf("frames of %v pieces, want %v", counts, c.want)
			}
		})
	}
}

// refusal is what a REFUSED frame says.
type refusal struct {
	sa     uint32
	reason control.Reason
	count  int
}

// refusalsOf are those among frames, and the other frames.
func refusalsOf(frames [][]byte) (list []refusal, rest [][]byte) {
	for _, f := range frames {
		if _, m, _ := split(f); m.kind == kindRefused {
			list = append(list, refusal{m.sa, control.Reason(m.identity), int(m.count)})
		} else {
			rest = append(rest, f)
		}
	}
	return list, rest
}

// TestSealRefused: what cannot be sealed is refused whole, and no number is used for it.
func TestSealRefused(t *testing.T) {
	good := cutRow{size: 1000, bytes: 5000, tcp: tcp{flags: tcpACK}}.frame(100)
	six := cutRow{ip6: true, size: 1000, bytes: 5000, tcp: tcp{flags: tcpACK}}.frame(100)
	datagram := cutRow{udp: true, size: 1000, bytes: 5000}.frame(100)
	change := func(f []byte, with func(v *vnet, m *meta, ip []byte)) []byte {
		v, m, ip := split(bytes.Clone(f))
		with(&v, &m, ip)
		return frame(v, m, ip)
	}
	for _, c := range []struct {
		name   string
		frame  []byte
		reason control.Reason
		count  int
	}{
		{"no such SA", change(good, func(_ *vnet, m *meta, _ []byte) { m.sa++ }),
			control.ReasonNoKey, 5},
		{"more segments than numbers",
			change(good, func(_ *vnet, m *meta, _ []byte) { m.count = 4 }),
			control.ReasonSealFailed, 4},
		{"no numbers", change(good, func(_ *vnet, m *meta, _ []byte) { m.count = 0 }),
			control.ReasonSealFailed, 1},
		{"number 0", change(good, func(_ *vnet, m *meta, _ []byte) { m.seq = 0 }),
			control.ReasonSealFailed, 5},
		{"numbers end", change(good, func(_ *vnet, m *meta, _ []byte) { m.seq = 1<<39 - 2 }),
			control.ReasonSealFailed, 5},
		{"segments of nothing", change(good, func(v *vnet, _ *meta, _ []byte) { v.size = 0 }),
			control.ReasonSealFailed, 5},
		{"unknown kind of GSO", change(good, func(v *vnet, _ *meta, _ []byte) { v.gso = 3 }),
			control.ReasonSealFailed, 5},
		{"GSO of the other family",
			change(good, func(v *vnet, _ *meta, _ []byte) { v.gso = gsoTCP6 }),
			control.ReasonSealFailed, 5},
		{"GSO of the other family, IPv6",
			change(six, func(v *vnet, _ *meta, _ []byte) { v.gso = gsoTCP4 }),
			control.ReasonSealFailed, 5},
		{"GSO of the other protocol",
			change(good, func(v *vnet, _ *meta, _ []byte) { v.gso = gsoUDP }),
			control.ReasonSealFailed, 5},
		{"TCP's GSO of a datagram",
			change(datagram, func(v *vnet, _ *meta, _ []byte) { v.gso = gsoTCP4 }),
			control.ReasonSealFailed, 5},
		{"checksum elsewhere", change(good, func(v *vnet, _ *meta, _ []byte) { v.offset = 6 }),
			control.ReasonSealFailed, 5},
		{"transport header elsewhere",
			change(good, func(v *vnet, _ *meta, _ []byte) { v.start += 4 }),
			control.ReasonSealFailed, 5},
		{"transport header beyond",
			change(six, func(v *vnet, _ *meta, _ []byte) { v.start = 65535 }),
			control.ReasonSealFailed, 5},
		{"transport header within the address",
			change(six, func(v *vnet, _ *meta, _ []byte) { v.start = 30 }),
			control.ReasonSealFailed, 5},
		{"TCP header too short",
			change(good, func(_ *vnet, _ *meta, ip []byte) { ip[32] = 4 << 4 }),
			control.ReasonSealFailed, 5},
		{"length beyond the frame",
			change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[2:], 5041) }),
			control.ReasonSealFailed, 5},
		{"IPv6 length beyond the frame",
			change(six, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[4:], 5021) }),
			control.ReasonSealFailed, 5},
		{"length within the header",
			change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[2:], 19) }),
			control.ReasonSealFailed, 5},
		{"headers only",
			change(good, func(_ *vnet, _ *meta, ip []byte) { be.PutUint16(ip[2:], 40) }),
			control.ReasonSealFailed, 5},
		{"neither IPv4 nor IPv6", change(good, func(_ *vnet, _ *meta, ip []byte) { ip[0] = 0x55 }),
			control.ReasonSealFailed, 5},
		{"IPv4 header of 16 bytes",
			change(good, func(_ *vnet, _ *meta, ip []byte) { ip[0] = 0x44 }),
			control.ReasonSealFailed, 5},
		{"checksum behind the packet",
			change(good, func(v *vnet, _ *meta, _ []byte) { v.gso, v.offset = gsoNone, 5040-20-1 }),
			control.ReasonSealFailed, 5},
		{"checksum within the IP header",
			change(good, func(v *vnet, _ *meta, _ []byte) { v.gso, v.start = gsoNone, 20 }),
			control.ReasonSealFailed, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			frames := give(e, out, c.frame)
			got, rest := refusalsOf(frames)
			_, m, _ := split(c.frame)
			// By the last number the hooks know what is out of the queue.
			for _, f := range frames {
				if _, said, _ := split(f); said.seq != (m.seq+uint64(max(m.count, 1))-1)&seqMask {
					t.Errorf("number %d, of %+v", said.seq, m)
				}
			}
			want := []refusal{{m.sa, c.reason, c.count}}
			if fmt.Sprint(got) != fmt.Sprint(want) || len(rest) != 0 {
				t.Errorf("refused %v, %d others, want %v", got, len(rest), want)
			}
			if e.stats.seal.refused[c.reason].Load() != uint64(c.count) {
				t.Error("not counted")
			}
			if len(inners(t, e, out, good)) != 5 {
				t.Error("the next one is not sealed with these numbers")
			}
		})
	}
}

// TestNumbersOnce: the process seals nothing with a number that it has used, whatever hooks say.
func TestNumbersOnce(t *testing.T) {
	row := cutRow{size: 1000, bytes: 5000, tcp: tcp{flags: tcpACK}}
	for _, c := range []struct {
		name   string
		seq    []uint64
		sealed int // of the last one: packets
	}{
		{"the next ones", []uint64{100, 105}, 5},
		{"the same", []uint64{100, 100}, 0},
		{"some of the same", []uint64{100, 104}, 0},
		{"some of the same before", []uint64{100, 96}, 0},
		{"in between", []uint64{100, 110, 105}, 5},
		{"earlier", []uint64{1000, 200}, 5},
		{"older than the window", []uint64{100, 100000, 200}, 0},
		{"older than the window, a lane that went on", []uint64{100000, 100}, 0},
		{"at the window's end", []uint64{100000, 100004 - windowSize + 1}, 5},
		{"across the window's end", []uint64{100000, 100004 - windowSize}, 0},
		{"after a leap", []uint64{100, 1 << 38, 1<<38 + 5}, 5},
		{"across 2^32", []uint64{1<<32 - 3, 1<<32 + 2}, 5},
		{"across 2^32, again", []uint64{1<<32 - 3, 1<<32 + 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, out := testEngine(t, testSA)
			for i, seq := range c.seq {
				refused, frames := refusalsOf(give(e, out, row.frame(seq)))
				sealed := 0
				for _, f := range frames {
					_, m, _ := split(f)
					sealed += int(m.count)
				}
				want := 5
				if i == len(c.seq)-1 {
					want = c.sealed
				}
				if sealed != want || want == 0 &&
					fmt.Sprint(refused) != fmt.Sprint([]refusal{{testSA, control.ReasonSealFailed,
						5}}) {
					t.Errorf("number %d: %d sealed, want %d, refused %v", seq, sealed, want,
						refused)
				}
			}
		})
	}
}

// TestNumbersLost: numbers that a packet did not need are used up with it.
func TestNumbersLost(t *testing.T) {
	e, out := testEngine(t, testSA)
	row := cutRow{size: 1000, bytes: 5000, tcp: tcp{flags: tcpACK}}
	v, m, ip := split(row.frame(100))
	m.count = 9
	if got := inners(t, e, out, frame(v, m, ip)); len(got) != 5 {
		t.Fatal(len(got), "packets")
	}
	if refused, _ := refusalsOf(give(e, out, row.frame(108))); len(refused) != 1 {
		t.Error("number 108 is used again")
	}
	if got := inners(t, e, out, row.frame(109)); len(got) != 5 {
		t.Error("number 109 is not used")
	}
}

// TestRoundTrip: what was sealed and opened again is the packet that it was, whole.
func TestRoundTrip(t *testing.T) {
	for _, row := range cutRows() {
		t.Run(fmt.Sprintf("%s, IPv6 %v", row.name, row.ip6), func(t *testing.T) {
			e, out := testEngine(t, testSA)
			f := row.frame(500)
			opened := openAgain(e, out, give(e, out, f))
			packets := 0
			for _, g := range opened {
				_, m, _ := split(g)
				packets += int(m.count)
			}
			if want := (row.bytes + row.size - 1) / row.size; packets != want {
				t.Fatalf("%d packets of %d", packets, want)
			}
			// What is not glued, TestGlueAsLinux has; what was sealed in several frames leaves so.
			glues := len(row.ext)+len(row.ipOpt) == 0 && row.tcp.flags&tcpCWR == 0
			if !glues || row.bytes > 60000 {
				return
			}
			v, _, want := split(f)
			w, m, got := split(opened[0])
			if w != v || !bytes.Equal(got, want) || m.seq != 500 || m.identity != testIdentity ||
				len(opened) != 1 {
				t.Errorf("%d frames, %+v %+v, want %+v\n got % x\nwant % x", len(opened), m, w, v,
					got[:60], want[:60])
			}
		})
	}
}

// openAgain opens sealed frames, and returns what is no refusal.
func openAgain(e *engine, out *record, sealed [][]byte) (opened [][]byte) {
	for _, f := range sealed {
		v, m, ip := split(f)
		_, frames := refusalsOf(give(e, out,
			frame(v, meta{kind: kindOpen, count: 1, sa: m.sa, seq: m.seq}, ip)))
		opened = append(opened, frames...)
	}
	return opened
}
