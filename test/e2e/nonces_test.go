package e2e

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
)

// keyOf is what the wire tells of a sealed packet's key. Two keys can look alike: an epoch's nibble
// comes again after 15 rotations, and nodes that meet anew within an epoch have other keys, whose
// numbers begin at 1.
type keyOf struct {
	src, dst    netip.Addr
	epoch, lane uint8
}

// sealedHead is the beginning of a ciphertext, as far as the inner packet's addresses.
type sealedHead [40]byte

// sealedPacket is what is kept of a packet until all are judged: a capture has no time for that.
type sealedPacket struct {
	key  keyOf
	iv   uint64
	head sealedHead
}

// nonces remembers every IV on the wire with the beginning of its ciphertext. Ciphertexts of the
// same key and nonce differ by exactly what their packets differ by (the keystream is the same,
// NIST SP 800-38D), and of every packet the version and most of the addresses are known: so a
// nonce that comes twice is told from one that belongs to two keys.
type nonces struct {
	inner   []innerPacket
	packets []sealedPacket
	// odd are packets whose sequence number is not their IV's lower half.
	odd uint64
}

func newNonces(l *lab.Lab) *nonces {
	rules := podRules(l)
	within := rules.Pods
	for _, node := range rules.Nodes {
		within = append(within, netip.PrefixFrom(node, node.BitLen()))
	}
	return &nonces{inner: innerPackets(within)}
}

// frame notes a frame's key and IV.
func (n *nonces) frame(f encryptcheck.Frame) {
	p, err := inet.Parse(f.Data)
	if err != nil {
		return
	}
	e, ok := encryptcheck.ParseESP(p, 4500)
	if !ok {
		return
	}
	if e.Seq != uint32(e.IV) {
		n.odd++
	}
	s := sealedPacket{key: keyOf{p.Src, p.Dst, e.Epoch(), e.Lane()}, iv: e.IV}
	copy(s.head[:], p.Payload[16:])
	n.packets = append(n.packets, s)
}

// overtaken is more than packets of one lane overtake each other by.
const overtaken = 1024

// unique holds the record to no repetition. It returns how many packets show that what looks like
// one key was two: their IV came again, or went back further than packets overtake each other.
func (n *nonces) unique(t *testing.T) (renewed int) {
	t.Helper()
	type nonce struct {
		key keyOf
		iv  uint64
	}
	seen, newest := map[nonce][]sealedHead{}, map[keyOf]uint64{}
	var repeats []string
	for _, p := range n.packets {
		at := nonce{p.key, p.iv}
		if len(seen[at]) > 0 || p.iv+overtaken < newest[p.key] {
			renewed++
		}
		for _, before := range seen[at] {
			if oneKeystream(n.inner, before, p.head) {
				repeats = append(repeats, fmt.Sprintf("%s to %s epoch %d lane %d IV %d", p.key.src,
					p.key.dst, p.key.epoch, p.key.lane, p.iv))
			}
		}
		seen[at] = append(seen[at], p.head)
		newest[p.key] = max(newest[p.key], p.iv)
	}
	t.Logf("%d sealed packets, %d with the IV of a former key", len(n.packets), renewed)
	if len(repeats) > 0 || n.odd > 0 || len(n.packets) == 0 {
		t.Errorf("of %d packets %d have a sequence number that is not their IV's; "+
			"%d have a key and IV of others, among them: %v", len(n.packets), n.odd, len(repeats),
			repeats[:min(len(repeats), 10)])
	}
	return renewed
}

// innerPacket is what is known of a packet before it is sealed: the bits of known that mask has.
type innerPacket struct{ known, mask sealedHead }

// innerPackets are the packets from each range to each of the same family.
func innerPackets(within []netip.Prefix) []innerPacket {
	var all []innerPacket
	for _, src := range within {
		for _, dst := range within {
			if src.Addr().Is4() != dst.Addr().Is4() {
				continue
			}
			var p innerPacket
			p.know(0, []byte{0x45}, 8)
			if src.Addr().Is6() {
				p.know(0, []byte{0x60}, 4)
			}
			addresses := 12 // RFC 791; of IPv6 8 (RFC 8200)
			if src.Addr().Is6() {
				addresses = 8
			}
			p.know(addresses, src.Addr().AsSlice(), src.Bits())
			p.know(addresses+src.Addr().BitLen()/8, dst.Addr().AsSlice(), dst.Bits())
			all = append(all, p)
		}
	}
	return all
}

// know adds the first bits of what stands at an offset.
func (p *innerPacket) know(at int, value []byte, bits int) {
	for i, b := range value {
		mask := byte(0xff) << max(0, 8-max(0, bits-8*i))
		p.known[at+i], p.mask[at+i] = b&mask, mask
	}
}

// oneKeystream says whether two ciphertexts differ by what two of the packets of one family can
// differ by. Under two keys 56 bits would have to agree by chance; of an IPv4 and an IPv6 packet
// only 28 are known both times, which is too few for the millions that are compared.
func oneKeystream(packets []innerPacket, a, b sealedHead) bool {
	for i := range packets {
		for j := range packets {
			one := packets[i].mask[0] == packets[j].mask[0]
			if one && packets[i].differsBy(&packets[j], &a, &b) {
				return true
			}
		}
	}
	return false
}

func (p *innerPacket) differsBy(q *innerPacket, a, b *sealedHead) bool {
	for i := range a {
		if (a[i]^b[i]^p.known[i]^q.known[i])&p.mask[i]&q.mask[i] != 0 {
			return false
		}
	}
	return true
}

// TestOneKeystream seals pairs of packets under one key and nonce, and under others: the record
// must tell the keystream that is the same from one that is not.
func TestOneKeystream(t *testing.T) {
	packets := innerPackets([]netip.Prefix{netip.MustParsePrefix("10.77.1.0/24"),
		netip.MustParsePrefix("10.77.2.0/24"), netip.MustParsePrefix("192.0.2.1/32"),
		netip.MustParsePrefix("fd77:1::/64"), netip.MustParsePrefix("fd77:2::/64")})
	v4 := func(src, dst string, fill byte) []byte {
		p := append([]byte{0x45}, bytes.Repeat([]byte{fill}, 63)...)
		copy(p[12:], netip.MustParseAddr(src).AsSlice())
		copy(p[16:], netip.MustParseAddr(dst).AsSlice())
		return p
	}
	v6 := func(src, dst string, fill byte) []byte {
		p := append([]byte{0x60}, bytes.Repeat([]byte{fill}, 63)...)
		copy(p[8:], netip.MustParseAddr(src).AsSlice())
		copy(p[24:], netip.MustParseAddr(dst).AsSlice())
		return p
	}
	plain := [][]byte{v4("10.77.1.10", "10.77.2.100", 1), v4("10.77.1.99", "10.77.2.7", 2),
		v4("10.77.2.9", "10.77.1.1", 3), v4("192.0.2.1", "10.77.2.100", 4),
		v6("fd77:1::10", "fd77:2::100", 5), v6("fd77:2::ffff", "fd77:1::1", 6)}
	keys := [][]byte{bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)}
	for i, a := range plain {
		for j, b := range plain {
			for _, c := range []struct {
				key, iv byte
				want    bool
			}{{0, 7, true}, {0, 8, false}, {1, 7, false}, {1, 8, false}} {
				was, is := sealedAs(t, keys[0], 7, a), sealedAs(t, keys[c.key], c.iv, b)
				want := c.want && a[0] == b[0]
				if got := oneKeystream(packets, was, is); got != want {
					t.Errorf("packets %d and %d, key 0 IV 7 and key %d IV %d: one keystream %t",
						i, j, c.key, c.iv, got)
				}
			}
		}
	}
}

// sealedAs is the head of a packet under a key and an IV (RFC 4106, with the salt 0).
func sealedAs(t *testing.T, key []byte, iv byte, packet []byte) sealedHead {
	t.Helper()
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := append(make([]byte, 11), iv)
	return sealedHead(gcm.Seal(nil, nonce, packet, nil)[:40])
}
