package sealer

import (
	"testing"

	"weft.dev/weft/internal/sealer/control"
)

// FuzzSeal: whatever a hook hands over, what is sealed opens again, has only the numbers that were
// reserved, and something goes back.
func FuzzSeal(f *testing.F) {
	for _, row := range cutRows() {
		row.size, row.bytes = row.size%61+1, row.bytes%300+1
		f.Add(row.frame(100))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < headLen+ip4Len || len(data) > headLen+maxIP {
			return
		}
		m := decodeMeta(data[vnetLen:])
		m.kind, m.sa, m.identity, m.seq = kindSeal4+m.kind&1, testSA, testIdentity, m.seq&0xffffff+1
		m.put(data[vnetLen:])
		e, out := testEngine(t, testSA)
		refused, frames := refusalsOf(give(e, out, data))
		if len(refused)+len(frames) == 0 || len(refused) > 1 || len(refused)*len(frames) != 0 {
			t.Fatalf("%d refusals, %d frames", len(refused), len(frames))
		}
		seq := m.seq
		for _, g := range frames {
			_, esp := pieces(t, g)
			if _, n, _ := split(g); n.seq != seq || int(n.count) != len(esp) ||
				n.kind != kindSealed {
				t.Fatalf("%+v for numbers from %d, %d pieces", n, seq, len(esp))
			}
			for _, piece := range esp {
				p, err := reference(testSA).Open(piece, uint32(seq>>32))
				if err != nil || p.Seq != seq || seq >= m.seq+uint64(m.count) ||
					ipLength(p.Inner) != len(p.Inner) {
					t.Fatalf("number %d of %d at %d: %v", seq, m.count, m.seq, err)
				}
				seq++
			}
		}
	})
}

// FuzzOpen: whatever the wire brings, what is opened is whole, and something goes back.
func FuzzOpen(f *testing.F) {
	esp, _ := fiveOf(f, 10, 30)
	f.Add(wrap(false, 0, 9, esp...))
	f.Add(wrap(true, 3, 9, esp[0]))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < headLen+ip4Len || len(data) > headLen+maxIP {
			return
		}
		m := decodeMeta(data[vnetLen:])
		m.kind = kindOpen
		m.put(data[vnetLen:])
		e, out := testEngine(t, testSA)
		checkOpened(t, give(e, out, data))
	})
}

// FuzzText: what a peer with the key may put into its packets.
func FuzzText(f *testing.F) {
	for _, ip6 := range []bool{false, true} {
		f.Add(append(segment(podPacket(ip6), tcp{flags: tcpACK}, pattern(10)), 1, 2, 2, 4),
			uint8(3), uint8(0))
	}
	f.Fuzz(func(t *testing.T, text []byte, n, tos uint8) {
		if len(text) < minText || len(text) > 1000 {
			return
		}
		text = text[:len(text)&^3]
		var esp [][]byte
		for i := range int(n%8) + 1 {
			// Numbers of IPv4 and TCP go on, so that some are glued.
			if len(text) > 28 {
				text[5]++
				text[27]++
			}
			esp = append(esp, sealText(t, testSA, uint64(i+1), text))
		}
		e, out := testEngine(t, testSA)
		checkOpened(t, give(e, out, wrap(false, tos, 0, esp...)))
	})
}

func checkOpened(t *testing.T, frames [][]byte) {
	t.Helper()
	if len(frames) == 0 {
		t.Fatal("nothing goes back")
	}
	refused, opened := refusalsOf(frames)
	for _, r := range refused {
		if r.count == 0 || r.reason == 0 || r.reason.String() == "unknown" {
			t.Fatalf("refused %+v", r)
		}
	}
	for _, f := range opened {
		v, m, ip := split(f)
		if m.kind != kindOpened || ipLength(ip) != len(ip) || v.gso == gsoNone != (m.count == 1) {
			t.Fatalf("%+v %+v of %d bytes, %d by its header", m, v, len(ip), ipLength(ip))
		}
	}
	segmentsOf(t, opened)
}

// FuzzCutter: no segment is longer than it says, and none reaches outside of the packet.
func FuzzCutter(f *testing.F) {
	f.Add(pattern(100), uint8(1), uint16(10), uint16(34), uint16(16), true)
	f.Fuzz(func(t *testing.T, p []byte, kind uint8, size, start, offset uint16, unfinished bool) {
		n := ipLength(p)
		if n == 0 {
			return
		}
		var c cutter
		buf := append(append([]byte{}, p[:n]...), make([]byte, slack)...)
		v := vnet{gso: kind % 8, size: int(size), start: int(start), offset: int(offset),
			unfinished: unfinished}
		if !c.begin(buf, n, v) {
			return
		}
		payload := 0
		for i := range c.count {
			at, length := c.segment(i)
			if at < 0 || at+length > n || ipLength(buf[at:]) != length {
				t.Fatalf("segment %d of %d: %d bytes at %d of %d", i, c.count, length, at, n)
			}
			payload += length - c.hl
		}
		if payload != n-c.hl {
			t.Fatalf("%d bytes of %d", payload, n-c.hl)
		}
	})
}

// holder is a control.Handler that only holds keys.
type holder struct{ keys *keyring }

func (h holder) Hello() control.Hello             { return control.Hello{Build: "x"} }
func (h holder) Configure(control.Config) error   { return nil }
func (h holder) Install(keys []control.Key) error { return h.keys.install(keys) }
func (h holder) Remove(keys []control.Held)       { h.keys.remove(keys) }
func (h holder) Each(f func(*control.Key) error) error {
	return h.keys.each(f)
}
func (h holder) Tap() int             { return 0 }
func (h holder) Begin() error         { return nil }
func (h holder) Stats() control.Stats { return control.Stats{} }
func (h holder) Quit()                {}
func (h holder) Leave()               {}

// FuzzControl: no message does harm, and afterwards nothing of it or of keys is in the buffers.
func FuzzControl(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{6, 0, 0, 0, 0, 0, 0, 0})
	f.Add(append([]byte{3, 0, 0, 0, 0, 0, 0, 1, 1}, pattern(48)...))
	f.Add(append([]byte{4, 0, 0, 0, 0, 0, 0, 1, 0}, pattern(12)...))
	f.Fuzz(func(t *testing.T, request []byte) {
		if len(request) > len(control.Buffers{}.Request) {
			return
		}
		keys := newKeyring()
		defer keys.wipe()
		if err := keys.install([]control.Key{testKey(true, testSA)}); err != nil {
			t.Fatal(err)
		}
		buffers, answers := &control.Buffers{}, 0
		a := control.Answerer{Handler: holder{keys}, Buffers: buffers,
			Send: func([]byte, int) error {
				answers++
				return nil
			}}
		n := copy(buffers.Request[:], request)
		if err := a.Answer(buffers.Request[:n]); (err == nil) != (answers > 0) {
			t.Fatalf("%d answers, %v", answers, err)
		}
		if *buffers != (control.Buffers{}) {
			t.Fatal("something is left in the buffers")
		}
	})
}
