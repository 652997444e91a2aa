package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/test/espref"
)

// Node b is the peer of the sealing tables: node 1 of the harness, with the keys below in either
// direction.
const (
	sealEpoch     = 3
	identityA     = 4711 // pod A's
	identityPeer  = 815  // of the peer's pods
	identityOther = 816  // of nobody's
)

var (
	wireA4, wireB4 = addr("192.0.2.1"), addr("192.0.2.2")
	wireA6, wireB6 = addr("2001:db8::1"), addr("2001:db8::2")
	keyOut, keyIn  = bytes.Repeat([]byte{0x11}, 32), bytes.Repeat([]byte{0x22}, 32)
	saltOut        = [4]byte{0xa, 0xb, 0xc, 0xd}
	saltIn         = [4]byte{1, 2, 3, 4}
	segmentMagic   = []byte{2, 0x57, 0x45, 0x46} // SEGMENT_MAGIC
)

// sealHarness is the harness with encryption on and keys for node 1, whose tunnel is of the given
// family.
type sealHarness struct {
	*harness
	*esp.Associations
	family int
	lanes  int
	// sealing says that a sealer has the keys.
	sealing bool
}

func newSealHarness(t testing.TB, family int) *sealHarness {
	t.Helper()
	b := &sealHarness{family: family, lanes: 2}
	b.harness = theSealHarness.use(t,
		&esp.Options{Engine: "auto", NoSealer: "only newSealerHarness has one", AllowTableAES: true,
			Port: 4500, Lanes: 2})
	b.Associations = b.sas
	b.opts.Encrypt.Lanes = b.lanes
	b.hops.Assign("b", 1)
	must(t, b.inside(b.configure))
	must(t, b.RemoveAllSAs(1))
	must(t, emptyMap(b.maps.SAUsed))
	must(t, emptyMap(b.maps.PeerAddr))
	must(t, emptyMap(b.maps.Plain))
	must(t, emptyMap(b.maps.PeerIDs))
	must(t, b.ClearTunnel(1))
	if family == 4 {
		b.opts.HostAddrs = []netip.Addr{node4, node6}
		b.enterTunnel(t, wireA4, wireB4, wireB6)
	} else {
		b.enterTunnel(t, wireA6, wireB6)
	}
	for prefix := range map[netip.Addr]bool{wireB4: true, wireB6: true} {
		key := bpf.RouteKeyOf(netip.PrefixFrom(prefix, prefix.BitLen()))
		must(t, b.maps.Routes.Put(&key, &bpf.Route{Node: 1, Flags: bpf.RouteHost}))
	}
	pod := podA
	pod.Identity = identityA
	must(t, b.putEndpoint(pod, []int{b.index["wta"]}))
	must(t, b.SetPeerIdentities(map[string][]uint32{"b": {identityPeer}}))
	return b
}

// enterTunnel has node b reached from a local address by the first of its own.
func (b *sealHarness) enterTunnel(t testing.TB, local netip.Addr, remote ...netip.Addr) {
	t.Helper()
	_, err := b.SetTunnel(1, local, remote[0], 1500)
	must(t, err)
	for _, a := range remote {
		key := bpf.ToAddr(a)
		must(t, b.maps.PeerAddr.Put(&key, uint32(1)))
	}
}

// keyed installs the keys in both directions and seals with them.
func (b *sealHarness) keyed(t testing.TB) *sealHarness {
	t.Helper()
	b.rekey(t, func(*esp.SA) {})
	return b
}

// rekey installs the keys anew, each changed, and waits until those that soon end have ended.
func (b *sealHarness) rekey(t testing.TB, change func(*esp.SA)) {
	t.Helper()
	must(t, b.SealWith("b", 0))
	must(t, b.RemoveAllSAs(1))
	must(t, emptyMap(b.maps.SAUsed))
	var last time.Time
	for lane := range uint8(b.lanes) {
		for _, out := range []bool{true, false} {
			sa := esp.SA{Node: "b", Out: out, Epoch: sealEpoch, Lane: lane, ID: 77,
				Number: sealEpoch, Expires: time.Now().Add(time.Hour), Salt: saltIn}
			copy(sa.Key[:], laneKey(keyIn, lane))
			if out {
				sa.Salt, sa.ID = saltOut, 78
				copy(sa.Key[:], laneKey(keyOut, lane))
			}
			change(&sa)
			last = sa.Expires
			must(t, b.InstallSA(&sa))
		}
	}
	must(t, b.SealWith("b", sealEpoch))
	if left := time.Until(last); left < time.Minute {
		time.Sleep(left + 50*time.Millisecond)
	}
}

// laneKey is the key of a lane: each has its own, as from a handshake.
func laneKey(key []byte, lane uint8) []byte {
	own := bytes.Clone(key)
	own[len(own)-1] ^= lane
	return own
}

func spiOf(epoch, lane, identity uint32) uint32 { return epoch<<28 | lane<<22 | identity }

// outer is the family's pair of tunnel ends.
func (b *sealHarness) outer() (here, there netip.Addr) {
	if b.family == 4 {
		return wireA4, wireB4
	}
	return wireA6, wireB6
}

// opened reads a frame that the datapath has sealed, with the reference.
func (b *sealHarness) opened(t testing.TB, frame []byte) (espref.Outer, espref.Packet) {
	t.Helper()
	outer, esp, err := espref.Unwrap(frame[14:])
	if err != nil {
		t.Fatalf("the sealed frame: %v\n%x", err, frame)
	}
	spi := binary.BigEndian.Uint32(esp)
	sa := espref.SA{SPI: spi, Key: laneKey(keyOut, uint8(spi>>22&63)), Salt: saltOut}
	packet, err := sa.Open(esp, 0)
	if err != nil {
		t.Fatalf("the reference does not open it: %v\n%x", err, frame)
	}
	return outer, packet
}

// sealedBy is a frame from the wire that node b, or whoever has its key, sealed.
func (b *sealHarness) sealedBy(t testing.TB, sa espref.SA, p espref.Packet,
	from netip.Addr) []byte {
	t.Helper()
	if p.Next == 0 {
		p.Next, p.Padding = espref.NextIPv4, espref.Padding(len(p.Inner))
		if p.Inner[0]>>4 == 6 {
			p.Next = espref.NextIPv6
		}
	}
	if p.IV == 0 {
		p.IV = p.Seq
	}
	esp, err := sa.SealAs(p)
	must(t, err)
	return b.onWire(from, esp)
}

func (b *sealHarness) onWire(from netip.Addr, esp []byte) []byte {
	here, _ := b.outer()
	to := here
	if from.Is6() {
		to = wireA6
	}
	ip := espref.Outer{From: netip.AddrPortFrom(from, 50000),
		To: netip.AddrPortFrom(to, espref.Port)}.Wrap(esp)
	frame := append(append([]byte(nil), uplinkMAC...), peerMAC...)
	if from.Is4() {
		frame = append(frame, 8, 0)
	} else {
		frame = append(frame, 0x86, 0xdd)
	}
	return append(frame, ip...)
}

func peerSA(lane uint32) espref.SA {
	return espref.SA{SPI: spiOf(sealEpoch, lane, identityPeer), Key: laneKey(keyIn, uint8(lane)),
		Salt: saltIn}
}

// sealWays are the ways of a pod's frame to the wire: sealed by from_pod, or, as an skb that may
// stand for many packets, by from_segment at the end of the segmentation veth.
var sealWays = append(slices.Clone(contexts), "pair")

// sealFrame takes a pod's frame all the way to the wire.
func (b *sealHarness) sealFrame(t testing.TB, way string,
	frame []byte) (verdict string, out []byte) {
	t.Helper()
	if way != "pair" {
		return b.send(t, way, "from_pod", "wta", frame)
	}
	verdict, out = b.sendSegments(t, frame)
	if verdict == "redirect" && !isSegment(out) {
		t.Fatalf("not sent into the segmentation veth: %x", out)
	}
	if verdict != "redirect" {
		return verdict, out
	}
	return b.send(t, "tc", "from_segment", "wtx", out)
}

// sendSegments runs from_pod on a frame that says it is to be cut.
func (b *sealHarness) sendSegments(t testing.TB, frame []byte) (verdict string, out []byte) {
	t.Helper()
	code, out, err := b.runWith(b.progs.Get("from_pod", hook.TCIngress),
		&skbContext{Ifindex: uint32(b.index["wta"]), GSOSize: 1, GSOSegs: 1}, frame)
	must(t, err)
	return verdictOf("tc", code), out
}

func isSegment(frame []byte) bool { return bytes.Equal(frame[:4], segmentMagic) }

// TestSegmentationKeepsOrder: what follows a frame that went through the segmentation veth in its
// flow does so too, for a moment, since it would overtake; the packets of other flows do not.
func TestSegmentationKeepsOrder(t *testing.T) {
	b := newSealHarness(t, 4).keyed(t)
	for _, step := range []struct {
		name     string
		from     uint16
		segments bool
		pair     bool
	}{
		{"alone", 1, false, false},
		{"many in one", 1, true, true},
		{"behind them", 1, false, true},
		{"of another flow", 2, false, false},
	} {
		frame := fromA(peer4).udp(step.from, 2, 3).bytes()
		verdict, out := b.send(t, "tc", "from_pod", "wta", frame)
		if step.segments {
			verdict, out = b.sendSegments(t, frame)
		}
		if verdict != "redirect" || isSegment(out) != step.pair {
			t.Errorf("%s: %s, through the segmentation veth: %v", step.name, verdict,
				isSegment(out))
		}
	}
}

// TestSealSizes seals packets of every size, both families in both, and opens them with the
// reference.
func TestSealSizes(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealHarness(t, family).keyed(t)
		limit := inet.SealedMTU(1500, family == 6)
		for _, context := range sealWays {
			for _, dst := range []netip.Addr{peer4, peer6} {
				t.Run(fmt.Sprintf("%s in IPv%d to %s", context, family, dst), func(t *testing.T) {
					for size := 0; ; size++ {
						in := fromA(dst).udp(1000, 2000, size).bytes()
						if len(in)-14 > limit {
							break
						}
						b.checkSealed(t, context, in)
						if t.Failed() {
							t.Fatalf("at %d bytes of payload", size)
						}
					}
				})
			}
		}
	}
}

func (b *sealHarness) checkSealed(t testing.TB, context string, in []byte) {
	t.Helper()
	verdict, out := b.sealFrame(t, context, in)
	if verdict != "redirect" {
		t.Fatalf("verdict %s: %v", verdict, b.counted(t))
	}
	outer, packet := b.opened(t, out)
	here, there := b.outer()
	want, next := bytes.Clone(in[14:]), uint8(espref.NextIPv4)
	if want[0]>>4 == 4 {
		want[8]--
		sum := uint32(binary.BigEndian.Uint16(want[10:])) + 0x100
		binary.BigEndian.PutUint16(want[10:], uint16(sum+sum>>16))
	} else {
		want[7]--
		next = espref.NextIPv6
	}
	switch {
	case packet.Next != next:
		t.Errorf("next header %d, want %d", packet.Next, next)
	case !bytes.Equal(packet.Inner, want):
		t.Errorf("inside:\n%x\nwant:\n%x", packet.Inner, want)
	case outer.From.Addr() != here || outer.To.Addr() != there:
		t.Errorf("tunnel from %s to %s, want %s to %s", outer.From, outer.To, here, there)
	case packet.SPI>>28 != sealEpoch || packet.SPI&0x3fffff != identityA ||
		packet.SPI>>22&63 >= uint32(b.lanes):
		t.Errorf("SPI %#x", packet.SPI)
	case packet.IV != packet.Seq:
		t.Errorf("IV %d, sequence number %d", packet.IV, packet.Seq)
	case packet.Padding != espref.Padding(len(want)):
		t.Errorf("padding of %d", packet.Padding)
	case !bytes.Equal(out[:6], peerMAC) || !bytes.Equal(out[6:12], uplinkMAC):
		t.Errorf("link header %x", out[:14])
	}
}

// TestSealTrailing: bytes behind the IP packet, of which a frame may have any number, leave neither
// sealed nor in cleartext.
func TestSealTrailing(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealHarness(t, family).keyed(t)
		for _, way := range sealWays {
			for _, dst := range []netip.Addr{peer4, peer6} {
				for _, trailing := range []int{1, 18, 60, 61, 100, 500} {
					in := fromA(dst).udp(1000, 2000, 5).bytes()
					verdict, out := b.sealFrame(t, way,
						append(bytes.Clone(in), bytes.Repeat([]byte{0xee}, trailing)...))
					if verdict != "redirect" {
						t.Fatalf("%s, %d bytes: verdict %s: %v", way, trailing, verdict,
							b.counted(t))
					}
					if _, p := b.opened(t, out); len(p.Inner) != len(in)-14 ||
						bytes.Contains(out, []byte{0xee, 0xee, 0xee, 0xee}) {
						t.Errorf("%s, %d bytes: inside %x, on the wire %x", way, trailing, p.Inner,
							out)
					}
				}
			}
		}
	}
}

// TestOpenSizes opens packets of every size that the reference has sealed.
func TestOpenSizes(t *testing.T) {
	for _, family := range []int{4, 6} {
		b := newSealHarness(t, family).keyed(t)
		_, there := b.outer()
		seq := uint64(0)
		for _, context := range contexts {
			for _, src := range []netip.Addr{peer4, peer6} {
				t.Run(fmt.Sprintf("%s in IPv%d from %s", context, family, src), func(t *testing.T) {
					for size := 0; size <= 1380; size++ {
						seq++
						in := newPacket(peerMAC, uplinkMAC, src, addrOf(podA, src)).udp(2000, 1000,
							size).bytes()
						frame := b.sealedBy(t, peerSA(1), espref.Packet{Seq: seq, Inner: in[14:]},
							there)
						verdict, out := b.send(t, context, "from_wire", "wtup", frame)
						if verdict != "redirect" {
							t.Fatalf("%d bytes of payload: verdict %s, %v", size, verdict,
								b.counted(t))
						}
						if err := routedTo(gatewayMAC, podA.MAC)(in, out); err != nil {
							t.Fatalf("%d bytes of payload: %v", size, err)
						}
					}
				})
			}
		}
	}
}
