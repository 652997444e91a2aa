package kernels

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"slices"
	"testing"

	"weft.dev/weft/test/espref"
)

// chunk is how many packets are under way at once: fewer than XFRM's window.
const chunk = 64

// edge is where the upper half of a sequence number changes; the tests cross it in the middle of
// their sizes.
const edge = 1 << 32

// goPeer is the other node, in Go.
type goPeer struct {
	wire         *port
	seal, open   espref.SA
	six          bool
	sent, opened uint64
}

func newGoPeer(t *testing.T) (*goPeer, *xfrmNode) {
	t.Helper()
	needRoot(t)
	ns := newNS(t, "go")
	x := newXFRM(t, ns)
	return &goPeer{wire: newPort(t, ns, "wire1")}, x
}

// start gives both ends fresh keys, the last sequence number used being last.
func (g *goPeer) start(t *testing.T, x *xfrmNode, six bool, last uint64) {
	t.Helper()
	g.seal, g.open, g.six, g.sent, g.opened = testKey(1), testKey(2), six, last, last
	g.seal.SPI, g.open.SPI = 0x10000100, 0x20400200
	x.set(t, state{sa: g.seal, six: six, seq: last},
		state{sa: g.open, out: true, six: six, seq: last})
}

func (g *goPeer) outer() espref.Outer {
	from, to := peer4, xfrm4
	if g.six {
		from, to = peer6, xfrm6
	}
	return espref.Outer{From: netip.AddrPortFrom(from, 0xc123),
		To: netip.AddrPortFrom(to, espref.Port)}
}

// toXFRM seals packets in Go; XFRM must open them.
func (g *goPeer) toXFRM(x *xfrmNode, packets [][]byte) error {
	var want [][]byte
	for _, p := range packets {
		g.sent++
		esp, err := g.seal.Seal(g.sent, p)
		if err != nil {
			return err
		}
		if err := g.wire.send(frame(wire0MAC, wire1MAC, g.outer().Wrap(esp))); err != nil {
			return err
		}
		want = append(want, forwarded(p, 1))
	}
	got, err := x.inside.receive(len(packets), isExperimental)
	if err != nil {
		return err
	}
	return sameSet(got, want)
}

// fromXFRM has packets sealed by XFRM; Go must open them.
func (g *goPeer) fromXFRM(x *xfrmNode, packets [][]byte) error {
	var want [][]byte
	for _, p := range packets {
		if err := x.inside.send(frame(inside0MAC, inside1MAC, p)); err != nil {
			return err
		}
		want = append(want, forwarded(p, 1))
	}
	var failed error
	got, err := g.wire.receive(len(packets), func(p []byte) []byte {
		_, esp, err := espref.Unwrap(p)
		if err != nil {
			return nil // the stack's own
		}
		opened, err := g.open.OpenNext(esp, g.opened, 128)
		if err == nil && opened.Seq != g.opened+1 {
			err = fmt.Errorf("sequence number %d after %d", opened.Seq, g.opened)
		}
		if err == nil && len(esp) != espref.Len(len(opened.Inner)) {
			err = fmt.Errorf("%d bytes of ESP around %d", len(esp), len(opened.Inner))
		}
		if err != nil {
			failed = err
			return p
		}
		g.opened = opened.Seq
		return opened.Inner
	})
	if failed != nil || err != nil {
		return errors.Join(failed, err)
	}
	return sameSet(got, want)
}

// shares is into how many shares of lengths WEFT_SEED cuts what everySize sends.
func shares() int {
	if seed := os.Getenv("WEFT_SEED"); seed == "" || seed == "all" {
		return 1
	}
	return 4
}

// TestSizesOfOtherSeeds names what everySize leaves out.
func TestSizesOfOtherSeeds(t *testing.T) {
	if shares() > 1 {
		t.Skipf("WEFT_SEED=%s chooses one in %d lengths for each place", os.Getenv("WEFT_SEED"),
			shares())
	}
}

// everySize calls do with packets of every length that fits, or of this place's share of them, in
// chunks.
func everySize(t *testing.T, from, to netip.Addr, longest int, do func([][]byte) error) error {
	for lengths := range slices.Chunk(sizes(t.Name(), minLen(from), longest), chunk) {
		var packets [][]byte
		for _, length := range lengths {
			packets = append(packets, newPacket(from, to, length, byte(length)))
		}
		if err := do(packets); err != nil {
			return err
		}
	}
	return nil
}

// sizes are the lengths that a place is to see. Other places, and other seeds, see others; all see
// the shortest and the longest.
func sizes(place string, shortest, longest int) (lengths []int) {
	const ends = 8
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(os.Getenv("WEFT_SEED") + place))
	for length := shortest; length <= longest; length++ {
		if (length+int(hash.Sum32()))%shares() == 0 || length < shortest+ends ||
			length > longest-ends {
			lengths = append(lengths, length)
		}
	}
	return lengths
}

// TestXFRMAndReference holds the Go reference and the kernel's ESP against each other, so that what
// either says of Weft means something: every size, both families inside and outside, across the
// change of the sequence number's upper half.
func TestXFRMAndReference(t *testing.T) {
	g, x := newGoPeer(t)
	for _, f := range families {
		longest := maxInner(f.six)
		last := uint64(edge - longest/shares()/2)
		g.start(t, x, f.six, last)
		t.Run(f.name+"/XFRM opens", func(t *testing.T) {
			if err := everySize(t, f.far, f.near, longest,
				func(p [][]byte) error { return g.toXFRM(x, p) }); err != nil {
				t.Errorf("%v; XFRM counts: %s", err, x.errors(t))
			}
			if g.sent <= edge {
				t.Errorf("last sequence number %d: want one beyond 2^32", g.sent)
			}
		})
		t.Run(f.name+"/XFRM seals", func(t *testing.T) {
			if err := everySize(t, f.near, f.far, longest,
				func(p [][]byte) error { return g.fromXFRM(x, p) }); err != nil {
				t.Errorf("%v; XFRM counts: %s", err, x.errors(t))
			}
			if g.opened <= edge {
				t.Errorf("last sequence number %d: want one beyond 2^32", g.opened)
			}
		})
	}
}

// TestXFRMRefuses makes sure that the oracle says no to what is wrong, or its yes means nothing.
func TestXFRMRefuses(t *testing.T) {
	g, x := newGoPeer(t)
	g.start(t, x, false, 0)
	good := newPacket(far4, near4, 100, 1)
	for name, change := range map[string]func(esp []byte){
		"a bit of the text":            func(esp []byte) { esp[30] ^= 1 },
		"a bit of the tag":             func(esp []byte) { esp[len(esp)-1] ^= 1 },
		"a bit of the IV":              func(esp []byte) { esp[12] ^= 1 },
		"a bit of the sequence number": func(esp []byte) { esp[7] ^= 0x20 },
	} {
		g.sent++
		esp, err := g.seal.Seal(g.sent, good)
		must(t, err)
		change(esp)
		must(t, g.wire.send(frame(wire0MAC, wire1MAC, g.outer().Wrap(esp))))
		// The next one is right: it arrives, and nothing before it did.
		if err := g.toXFRM(x, [][]byte{newPacket(far4, near4, 77, 2)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
