package wirefuzz

import (
	"math/rand/v2"
	"net/netip"
)

// part is one frame. A shot has more than one where they belong together, such as fragments.
type part struct {
	id      uint32
	data    []byte
	tag     *uint16 // a VLAN tag beside the frame
	service bool    // of 802.1ad
	merge   []byte  // the struct virtio_net_hdr of a frame that stands for many
	sealAs  *uint32 // sealed by the other node under this identity, instead of put on the cable
	how     claim
	inner   []byte // what to read instead of data, where data hides it
	must    string // the pod that has to get it
	// pieces are the genuine packets that a merged frame stands for, besides its first.
	pieces []*part
	// envelope is how it is carried, empty if as it is.
	envelope string
}

// shot is what is sent at once.
type shot struct {
	number uint32
	shape  string
	at     string // the node that gets it
	parts  []*part
}

// gen makes shots, each from the seed and its own number alone; only what is sealed is made in the
// run.
type gen struct {
	r    *referee
	rng  *rand.Rand
	at   string
	macs []byte
}

func (g *gen) pick(n int) int { return g.rng.IntN(n) }
func (g *gen) one(n int) bool { return g.rng.IntN(n) == 0 }
func (g *gen) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.rng.Uint32())
	}
	return b
}

func choose[T any](g *gen, from ...T) T { return from[g.pick(len(from))] }

// mark is a marker of its own for one part, with some more bytes.
func (g *gen) mark(more int) (uint32, []byte) {
	id := g.r.newID(nil)
	return id, append(g.r.tap.marker(id), make([]byte, more)...)
}

// class is a kind of address, seen from the node that gets the frame.
type class struct {
	name   string
	v4, v6 func(at string) string
}

func fixed(a string) func(string) string { return func(string) string { return a } }

func by(a, b string) func(string) string {
	return func(at string) string {
		if at == "a" {
			return a
		}
		return b
	}
}

var sources = []class{
	{"world", fixed("192.0.2.9"), fixed("2001:db8::9")},
	{"far", fixed("198.51.100.7"), fixed("2001:db8:ffff::7")},
	{"local pod", by("10.77.1.10", "10.77.2.100"), by("fd77:1::10", "fd77:2::100")},
	{"unassigned here", by("10.77.1.200", "10.77.2.200"), by("fd77:1::200", "fd77:2::200")},
	{"this node", by("192.0.2.1", "192.0.2.2"), by("2001:db8::1", "2001:db8::2")},
	{"peer's pod", by("10.77.2.100", "10.77.1.10"), by("fd77:2::100", "fd77:1::10")},
	{"unassigned at the peer", by("10.77.2.200", "10.77.1.200"), by("fd77:2::200", "fd77:1::200")},
	{"peer", by("192.0.2.2", "192.0.2.1"), by("2001:db8::2", "2001:db8::1")},
	{"plain pod", fixed("10.77.2.80"), fixed("fd77:2::80")},
	{"unspecified", fixed("0.0.0.0"), fixed("::")},
	{"loopback", fixed("127.0.0.1"), fixed("::1")},
	{"link-local", fixed("169.254.7.7"), fixed("fe80::7")},
	{"gateway", fixed("169.254.1.1"), fixed("fe80::1")},
	{"multicast", fixed("224.0.0.1"), fixed("ff02::1")},
	{"broadcast", fixed("255.255.255.255"), fixed("ff05::1:3")},
	{"reserved or mapped pod", fixed("240.0.0.1"), by("::ffff:10.77.1.10", "::ffff:10.77.2.100")},
	{"subnet or mapped world", fixed("192.0.2.255"), fixed("::ffff:198.51.100.7")},
	{"network or compatible", by("10.77.1.0", "10.77.2.0"), by("::10.77.1.10", "::10.77.2.100")},
}

var destinations = []class{
	{"local pod", by("10.77.1.10", "10.77.2.100"), by("fd77:1::10", "fd77:2::100")},
	{"another local pod, which at a is isolated", by("10.77.1.100", "10.77.2.80"), by("fd77:1::100", "fd77:2::80")},
	{"unassigned here", by("10.77.1.200", "10.77.2.200"), by("fd77:1::200", "fd77:2::200")},
	{"this node", by("192.0.2.1", "192.0.2.2"), by("2001:db8::1", "2001:db8::2")},
	{"peer's pod", by("10.77.2.100", "10.77.1.10"), by("fd77:2::100", "fd77:1::10")},
	{"unassigned at the peer", by("10.77.2.200", "10.77.1.200"), by("fd77:2::200", "fd77:1::200")},
	{"peer", by("192.0.2.2", "192.0.2.1"), by("2001:db8::2", "2001:db8::1")},
	{"multicast", fixed("224.0.0.1"), fixed("ff02::1")},
	{"broadcast", fixed("255.255.255.255"), fixed("ff02::2")},
	{"subnet broadcast or mapped pod", by("10.77.1.255", "10.77.2.255"),
		by("::ffff:10.77.1.10", "::ffff:10.77.2.100")},
	{"world", fixed("198.51.100.7"), fixed("2001:db8:ffff::7")},
}

func (c class) addr(at string, family int) netip.Addr {
	if family == 6 {
		return netip.MustParseAddr(c.v6(at))
	}
	return netip.MustParseAddr(c.v4(at))
}

// envelopes are ways to carry a frame that differ in tags.
var envelopes = []struct {
	name string
	put  func(p *part)
}{
	{"untagged", func(*part) {}},
	{"VID 0 in the frame", func(p *part) { p.data = tagged(p.data, 0x8100, 0) }},
	{"VID 0 beside the frame", func(p *part) { p.tag = new(uint16) }},
	{"VID 7 beside the frame", func(p *part) { tci := uint16(7); p.tag = &tci }},
	{"priority 802.1ad in the frame", func(p *part) { p.data = tagged(p.data, 0x88a8, 5<<13) }},
	{"priority 802.1ad beside the frame",
		func(p *part) { tci := uint16(6 << 13); p.tag, p.service = &tci, true }},
	{"VID 7 in the frame", func(p *part) { p.data = tagged(p.data, 0x8100, 7) }},
	{"VID 0 in VID 0", func(p *part) { p.data = tagged(tagged(p.data, 0x8100, 0), 0x88a8, 0) }},
	{"VID 0 in VID 7", func(p *part) { p.data = tagged(tagged(p.data, 0x8100, 0), 0x88a8, 7) }},
	{"VID 7 in VID 0", func(p *part) { p.data = tagged(tagged(p.data, 0x8100, 7), 0x8100, 0) }},
	{"VID 0 in VID 0 beside",
		func(p *part) { p.data = tagged(p.data, 0x8100, 0); p.tag = new(uint16) }},
	{"VID 7 in VID 0 beside",
		func(p *part) { p.data = tagged(p.data, 0x8100, 7); p.tag = new(uint16) }},
}

// matrix is how many shots hold every class of source against every class of destination in each of
// the first four envelopes. Random shots use all.
var matrix = uint32(2 * 2 * len(sources) * len(destinations) * 4)

// make builds the shot of a number.
func (r *referee) make(number uint32) *shot {
	g := &gen{r: r, rng: rand.New(rand.NewPCG(seed, uint64(number)))}
	n := int(number)
	g.at = []string{"a", "b"}[n%2]
	mac := r.macs[g.at]
	g.macs = append(append([]byte(nil), mac...), 0x02, 0, 0, 0, 0xbe, 0xef)
	s := &shot{number: number, at: g.at}
	if number < matrix {
		n /= 2
		src, n := sources[n%len(sources)], n/len(sources)
		dst, n := destinations[n%len(destinations)], n/len(destinations)
		family, n := 4+n%2*2, n/2
		s.shape = src.name + " to " + dst.name
		p := &part{}
		var text []byte
		p.id, text = g.mark(32)
		from, to := src.addr(g.at, family), dst.addr(g.at, family)
		p.data = datagram(g.macs, from, to, 7001, 7002, text, 64)
		p.must = r.mustReach(s.at, from, to)
		p.carry(n)
		if n > 2 { // a VLAN
			p.must = ""
		}
		s.parts = []*part{p}
		return s
	}
	pick := shapes[g.pick(len(shapes))]
	s.shape = pick.name
	s.parts = pick.make(g)
	if s.parts == nil {
		return nil
	}
	return s
}

// mustReach is the pod that an honest packet in cleartext has to reach: from the world or a plain
// pod.
func (r *referee) mustReach(at string, src, dst netip.Addr) string {
	world := src == far[0] || src == far[1] || src.String() == "192.0.2.9" ||
		src.String() == "2001:db8::9"
	if home := r.know.home(dst); home == at &&
		(world || r.know.plain[src] && r.know.home(src) != at) && !r.know.isolated[r.know.pods[dst]] {
		return r.know.pods[dst]
	}
	return ""
}

// ends are two addresses of random classes; most shots aim at pods.
func (g *gen) ends() (family int, src, dst netip.Addr) {
	family = choose(g, 4, 6)
	to := destinations[0]
	if g.one(3) {
		to = choose(g, destinations...)
	}
	return family, choose(g, sources...).addr(g.at, family), to.addr(g.at, family)
}

// envelope carries some parts in another way than as they are.
func (g *gen) envelope(p *part) *part {
	if g.one(3) {
		p.carry(g.pick(len(envelopes)))
	}
	return p
}

// carry puts a part into an envelope.
func (p *part) carry(n int) {
	p.envelope = envelopes[n].name
	envelopes[n].put(p)
}

// plain is a part with an IP packet.
func (g *gen) plain(id uint32, ip []byte) *part {
	return &part{id: id, data: ethernet(g.macs, ip)}
}
