package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
)

// Where things are in a sealed frame over IPv4.
const (
	atIP  = inet.EthernetLen
	atUDP = atIP + inet.IPv4Len
	atESP = atUDP + inet.UDPLen
	atSeq = atESP + 4
	atIV  = atESP + 8
)

// hostilePort is where what a hostile machine sends would arrive.
const hostilePort = 9500

// attacker sends frames to node b from a machine on the same wire.
type attacker struct {
	*wireEnd
	own, target net.HardwareAddr
	b           *lab.Node
}

func newAttacker(t *testing.T, l *lab.Lab) *attacker {
	t.Helper()
	out, b := l.Node("out"), l.Node("b")
	return &attacker{openEnd(t, out.NetNS, "w0", false), mac(linkMAC(t, out, "w0")),
		mac(linkMAC(t, b, "w0")), b}
}

// put sends a frame to node b, whoever's it was.
func (a *attacker) put(t *testing.T, frame []byte) {
	t.Helper()
	frame = bytes.Clone(frame)
	copy(frame, a.target)
	copy(frame[6:], a.own)
	a.send(t, frame)
}

// refused sends frames and wants each to be dropped for one of the reasons, and nothing else to be
// counted.
func (a *attacker) refused(t *testing.T, what string, frames [][]byte, reasons ...string) {
	t.Helper()
	before := encryptDrops(t, a.b)
	for i, frame := range frames {
		a.put(t, frame)
		if i%50 == 49 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	var sum uint64
	eventually(t, what, func() error {
		now := encryptDrops(t, a.b)
		sum = 0
		for _, reason := range reasons {
			sum += now[reason] - before[reason]
		}
		if sum < uint64(len(frames)) {
			return fmt.Errorf("%d of %d refused as %s; new drops: %s; all: %s", sum, len(frames),
				strings.Join(reasons, " or "), newDrops(t, a.b, before), dropText(t, a.b))
		}
		return nil
	})
	if sum != uint64(len(frames)) {
		t.Errorf("%s: %d frames, %d drops: %s", what, len(frames), sum, newDrops(t, a.b, before))
	}
}

// hostile sends node b what nobody may send, from the bare node. Each is refused with a reason of
// its own and arrives nowhere; the one genuine packet among all, held back on the wire, arrives
// once.
func hostile(t *testing.T, l *lab.Lab) {
	arrived := listen(t, l.Pod("server"), hostilePort)
	atNode := listen(t, &lab.Pod{NetNS: l.Node("b").NetNS}, hostilePort)
	evil := newAttacker(t, l)
	held := holdBack(t, l)
	plaintext(t, l, evil)
	forgedESP(t, evil, held)
	brokenESP(t, evil, held)
	tornESP(t, l, evil, held)
	if n := arrived.total.Load() + atNode.total.Load(); n != 0 {
		t.Errorf("%d forged packets arrived", n)
	}
	evil.put(t, held)
	if from := arrived.next(t, "the genuine packet"); from.Addr() != l.Pod("client").IPv4 {
		t.Errorf("it came from %s", from)
	}
	evil.refused(t, "replayed", [][]byte{held, held, held}, "esp_replayed")
	later := bytes.Clone(held)
	binary.BigEndian.PutUint16(later[atUDP:],
		1234) // the source port is only a hint for routers, and not signed
	evil.refused(t, "replayed from another port", [][]byte{later}, "esp_replayed")
	soon()
	if n := arrived.total.Load() + atNode.total.Load(); n != 1 {
		t.Errorf("%d packets arrived, not the one genuine", n)
	}
}

// holdBack has client send one packet to server and keeps it from arriving: it returns the sealed
// frame.
func holdBack(t *testing.T, l *lab.Lab) []byte {
	t.Helper()
	const size = 333
	client, server := l.Pod("client"), l.Pod("server")
	if err := reach(t.Context(), client, server); err != nil { // neighbours are known, then
		t.Fatal(err)
	}
	frames := make(chan []byte, 64)
	watch := watchWire(t, l, podRules(l), func(f encryptcheck.Frame) {
		p, err := inet.Parse(f.Data)
		if _, ok := encryptcheck.ParseESP(p, 4500); err == nil && ok &&
			p.Dst == l.Node("b").Addresses[0] && len(f.Data) > size {
			frames <- bytes.Clone(f.Data)
		}
	})
	blocking := func(state string) { must(t, wireNS(l), "bridge", "link", "set", "dev", "p1", "state", state) }
	blocking("0")
	defer blocking("3")
	err := client.Do(func() error {
		conn, err := net.DialUDP("udp", nil,
			net.UDPAddrFromAddrPort(addrPort(server.IPv4, hostilePort)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(make([]byte, size))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case frame := <-frames:
		watch.stop(t)
		return frame
	case <-time.After(patience):
		t.Fatal("client's packet was not seen on the wire")
	}
	return nil
}

// plaintext pretends to be what should seal: pods of the peer, and the peer itself.
func plaintext(t *testing.T, l *lab.Lab, evil *attacker) {
	client, server, a, b := l.Pod("client"), l.Pod("server"), l.Node("a"), l.Node("b")
	var frames [][]byte
	for family := range map[int]bool{4: true, 6: true} {
		for _, pair := range [][2]netip.Addr{
			{client.Addr(family), server.Addr(family)},
			{a.Addresses[family/6], server.Addr(family)},
			{client.Addr(family), b.Addresses[family/6]},
		} {
			frames = append(frames,
				datagram(evil.own, addrPort(pair[0], 999), addrPort(pair[1], hostilePort), false))
		}
	}
	evil.refused(t, "plaintext", frames, "plaintext")
}

// fresh is a sealed frame with a sequence number that was not seen yet: the replay window lets it
// pass.
func fresh(held []byte, ahead uint32) []byte {
	frame := bytes.Clone(held)
	seq := binary.BigEndian.Uint32(held[atSeq:]) + ahead
	binary.BigEndian.PutUint32(frame[atSeq:], seq)
	binary.BigEndian.PutUint64(frame[atIV:], binary.BigEndian.Uint64(held[atIV:])+uint64(ahead))
	return frame
}

// forgedESP is well formed, but nobody sealed it like that.
func forgedESP(t *testing.T, evil *attacker, held []byte) {
	random := fresh(held, 100)
	for i := atESP + 16; i < len(random); i++ {
		random[i] = byte(rand.Uint32())
	}
	evil.refused(t, "random bytes", [][]byte{random, fresh(held, 101)}, "esp_bad_tag")

	var flipped [][]byte
	for bit := range 22 {
		frame := bytes.Clone(held)
		frame[atESP+3-bit/8] ^= 1 << (bit % 8)
		flipped = append(flipped, frame)
	}
	evil.refused(t, "identity bits flipped", flipped, "esp_bad_tag")

	otherEpoch, otherLane, swapped := bytes.Clone(held), bytes.Clone(held), bytes.Clone(held)
	otherEpoch[atESP] = (otherEpoch[atESP]>>4+7)%15<<4 + 1<<4 | otherEpoch[atESP]&15
	spi := binary.BigEndian.Uint32(held[atESP:])
	binary.BigEndian.PutUint32(otherLane[atESP:], spi|63<<22)
	evil.refused(t, "unknown SPI", [][]byte{otherEpoch}, "esp_unknown_sa")
	evil.refused(t, "a lane that is not", [][]byte{otherLane}, "esp_unknown_sa")
	// Another lane of the same sender has another key, and may have counted much farther.
	binary.BigEndian.PutUint32(swapped[atESP:], spi^1<<22)
	evil.refused(t, "the wrong lane", [][]byte{fresh(swapped, 1<<28)}, "esp_bad_tag")

	unknown, bare := bytes.Clone(held), bytes.Clone(held)
	copy(unknown[atIP+12:], netip.MustParseAddr("192.0.2.77").AsSlice())
	copy(bare[atIP+12:], netip.MustParseAddr("192.0.2.9").AsSlice())
	evil.refused(t, "from an unknown address", [][]byte{sum(unknown)}, "esp_unknown_peer")
	evil.refused(t, "from a node without keys", [][]byte{sum(bare)}, "esp_unknown_sa")

	cut := bytes.Clone(held)
	cut[atIP+6] |= 0x20 // more fragments
	evil.refused(t, "a fragment", [][]byte{sum(cut)}, "esp_fragment")
}

// brokenESP cuts the packet at every length, with headers that say so, and flips every bit of it.
func brokenESP(t *testing.T, evil *attacker, held []byte) {
	var short, flipped [][]byte
	whole := fresh(held, 200)
	for n := 0; n < len(held)-atESP; n++ {
		if n == 1 {
			continue // a keep-alive of RFC 3948
		}
		frame := bytes.Clone(whole[:atESP+n])
		binary.BigEndian.PutUint16(frame[atIP+2:], uint16(len(frame)-atIP))
		binary.BigEndian.PutUint16(frame[atUDP+4:], uint16(len(frame)-atUDP))
		short = append(short, sum(frame))
	}
	evil.refused(t, "shortened", short, "esp_malformed", "esp_bad_tag")
	for bit := range (len(held) - atESP) * 8 {
		frame := bytes.Clone(held)
		frame[atESP+bit/8] ^= 1 << (bit % 8)
		flipped = append(flipped, frame)
	}
	// A flipped sequence number may be one that was used, a flipped SPI one that has no key.
	evil.refused(t, "every bit flipped", flipped, "esp_bad_tag", "esp_replayed", "esp_unknown_sa")
}

// tornESP cuts the frame at every length behind the headers, which still tell the whole. A bridge
// may drop such frames by itself, so they are put on the cable to node b.
func tornESP(t *testing.T, l *lab.Lab, evil *attacker, held []byte) {
	cable := *evil
	cable.wireEnd = openEnd(t, wireNS(l), "p1", false)
	whole := fresh(held, 300)
	var torn [][]byte
	for n := atESP; n < len(whole); n++ {
		torn = append(torn, whole[:n])
	}
	cable.refused(t, "torn off", torn, "esp_malformed")
}

// sum makes the IPv4 header's checksum right.
func sum(frame []byte) []byte {
	inet.SetIPv4Checksum(frame[atIP:])
	return frame
}
