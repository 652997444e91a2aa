package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
)

// maxFuzzFrame keeps frames within one page together with XDP's room.
const maxFuzzFrame = 2000

// fuzzHook picks where a frame comes in by the fuzzer's byte.
func fuzzHook(selector byte) (hook, iface string) {
	if selector&1 == 1 {
		return "from_wire", "wtup"
	}
	return "from_pod", "wta"
}

// fuzzSeeds are frames of every kind that the parser knows.
func fuzzSeeds() [][]byte {
	sent4, sent6 := fromA(peer4).udp(1000, 53, 40), fromA(peer6).udp(1000, 53, 40)
	list := []packet{
		sent4, sent6, fromA(podB.IPv4).tcp(1000, 80, syn, 8), fromA(peer4).tcp(1000, 80, ack, 8),
		fromA(peer6).tcp(1, 2, fin|ack, 8),
		fromA(peer4).echo(7, 8), fromA(peer6).echo(7, 8), fromA(world4).udp(1, 2, 8),
		fromA(world6).udp(1, 2, 8),
		fromA(nobody4).udp(1, 2, 8), fromA(cold6).udp(1, 2, 8), sent4.ttl(1), sent6.ttl(1),
		fromA(peer4).udp(1, 2, 1480), fromA(peer6).udp(1, 2, 1480),
		sent4.opts(7, 7, 4, 0, 0, 0, 0, 0), sent4.opts(1, 131, 3, 4), sent4.fragment(0, 16, true),
		sent4.fragment(16, 48, false),
		sent6.fragment(0, 16, true), sent6.fragment(16, 48, false),
		sent6.ext(unix.IPPROTO_HOPOPTS, optionsHeader(8)),
		sent6.ext(unix.IPPROTO_ROUTING, routingHeader(0, 24)),
		sent6.ext(unix.IPPROTO_DSTOPTS, optionsHeader(16)).ext(unix.IPPROTO_AH, authHeader(24)),
		sent6.ext(unix.IPPROTO_FRAGMENT, make([]byte, 8)), arpRequest(podA, podA.IPv4, GatewayIPv4),
		arpRequest(podA, podB.IPv4, podA.IPv4),
		solicit(podA, podA.IPv6, GatewayIPv6, true),
		advertise(podA, podA.IPv6, podA.IPv6, podA.MAC), sent4.tag(0x8100, 5),
		fromA(addr("224.0.0.22")).raw(2, make([]byte, 8)),
		fromA(addr("ff02::fb")).udp(5353, 5353, 8),
		fromPeer(podA.IPv4).udp(53, 1000, 40), fromPeer(podA.IPv6).udp(53, 1000, 40),
		fromPeer(podA.IPv4).tcp(80, 1000, ack, 8),
		fromPeer(podA.IPv4).icmpError(11, 0, 0, sent4, 28),
		fromPeer(podA.IPv6).icmpError(2, 0, 1280, sent6, 88),
		fromPeer(node4).udp(1, 2, 8), fromPeer(podA.IPv4).src(podB.IPv4).udp(1, 2, 8),
	}
	var frames [][]byte
	for _, p := range list {
		frames = append(frames, p.bytes())
	}
	return frames
}

// fuzzState is what a frame may meet: known flows of each kind, and a first fragment.
func fuzzState(t testing.TB, b *harness, context string) {
	b.reset(t)
	for _, p := range []packet{
		fromA(peer4).udp(1000, 53, 40), fromA(peer6).udp(1000, 53, 40),
		fromA(peer4).udp(1000, 53, 40),
		fromA(peer4).tcp(1000, 80, syn, 0), fromA(peer4).udp(1000, 53, 40).fragment(0, 16, true),
		fromA(peer6).udp(1000, 53, 40).fragment(0, 16, true),
	} {
		b.send(t, context, "from_pod", "wta", p.bytes())
	}
	b.send(t, context, "from_wire", "wtup", fromPeer(podA.IPv4).tcp(80, 1000, syn|ack, 0).bytes())
	b.send(t, context, "from_pod", "wta", fromA(peer4).tcp(1000, 80, ack, 0).bytes())
}

// checkFrame sends a frame through both contexts from equal states, twice each, and checks what
// must hold of any.
func checkFrame(t testing.TB, b *harness, selector byte, frame []byte) error {
	hook, iface := fuzzHook(selector)
	type result struct {
		verdicts [2]string
		outs     [2][]byte
		reasons  []string
		flows    int
	}
	var results []result
	for _, context := range contexts {
		fuzzState(t, b, context)
		var r result
		for i := range r.verdicts {
			r.verdicts[i], r.outs[i] = b.send(t, context, hook, iface, frame)
			if err := checkResult(hook, frame, r.verdicts[i], r.outs[i]); err != nil {
				return fmt.Errorf("%s: packet %d: %w", context, i+1, err)
			}
		}
		r.reasons, r.flows = sorted(reasonsIn(b.counted(t))), len(b.flowList(t))
		results = append(results, r)
	}
	x, s := results[0], results[1]
	if slices.Contains(s.verdicts[:], "refused") {
		return nil // shorter than test_run takes for TC
	}
	if x.verdicts != s.verdicts || !slices.Equal(x.reasons, s.reasons) || x.flows != s.flows {
		return fmt.Errorf("XDP: %v %v, %d flows; TC: %v %v, %d flows", x.verdicts, x.reasons,
			x.flows, s.verdicts, s.reasons, s.flows)
	}
	for i := range x.outs {
		if !bytes.Equal(x.outs[i], s.outs[i]) {
			return fmt.Errorf("packet %d:\nXDP %x\nTC  %x", i+1, x.outs[i], s.outs[i])
		}
	}
	return nil
}

// checkResult holds one verdict against the frame, read by code of its own.
func checkResult(hook string, in []byte, verdict string, out []byte) error {
	switch verdict {
	case "drop", "refused":
		return nil
	case "pass":
		if !bytes.Equal(in, out) {
			return fmt.Errorf("passed on to the stack and changed:\n in %x\nout %x", in, out)
		}
		if hook == "from_pod" {
			return checkSender(in)
		}
		return nil
	case "redirect":
		if hook == "from_pod" {
			if err := checkSender(in); err != nil {
				return err
			}
		} else if err := checkReceiver(in); err != nil {
			return err
		}
		return checkForwarded(out)
	}
	return fmt.Errorf("verdict %s", verdict)
}

// checkSender: nothing gets past pod A's interface that is not pod A's.
func checkSender(in []byte) error {
	if !bytes.Equal(in[6:12], podA.MAC) {
		return fmt.Errorf("source MAC %x got through", in[6:12])
	}
	var src netip.Addr
	switch binary.BigEndian.Uint16(in[12:]) {
	case 0x0806:
		if spa := addrFrom4(in[28:32]); !bytes.Equal(in[22:28], podA.MAC) || spa != podA.IPv4 &&
			spa != addr("0.0.0.0") {
			return fmt.Errorf("ARP of %s at %x got through", spa, in[22:28])
		}
		return nil
	case 0x0800:
		src = addrFrom4(in[26:30])
	case 0x86dd:
		src = netip.AddrFrom16([16]byte(in[22:38]))
		if in[20] == unix.IPPROTO_ICMPV6 && in[54] == 135 && src.IsLinkLocalUnicast() {
			return nil // a solicitation for the gateway: answered, goes nowhere
		}
	default:
		return fmt.Errorf("EtherType %x got through", in[12:14])
	}
	if src != podA.IPv4 && src != podA.IPv6 {
		return fmt.Errorf("source %s got through", src)
	}
	return nil
}

// checkReceiver: from the wire, only packets for this node's pods are taken off the stack's hands,
// and none that claim to be theirs.
func checkReceiver(in []byte) error {
	var src, dst netip.Addr
	switch binary.BigEndian.Uint16(in[12:]) {
	case 0x0800:
		src, dst = addrFrom4(in[26:30]), addrFrom4(in[30:34])
	case 0x86dd:
		src, dst = netip.AddrFrom16([16]byte(in[22:38])), netip.AddrFrom16([16]byte(in[38:54]))
	default:
		return fmt.Errorf("EtherType %x was forwarded", in[12:14])
	}
	pods := []netip.Addr{podA.IPv4, podA.IPv6, podB.IPv4, podB.IPv6}
	if !slices.Contains(pods, dst) || slices.Contains(pods, src) {
		return fmt.Errorf("%s > %s was forwarded from the wire", src, dst)
	}
	return nil
}

// checkForwarded: whatever leaves a hook is a whole packet with a living TTL and a right checksum.
func checkForwarded(out []byte) error {
	switch binary.BigEndian.Uint16(out[12:]) {
	case 0x0806:
		return nil
	case 0x0800:
		n := int(out[14]&15) * 4
		if total := int(binary.BigEndian.Uint16(out[16:])); total < n || 14+total > len(out) {
			return fmt.Errorf("total length %d in a frame of %d", total, len(out))
		}
		if inet.Checksum(out[14:14+n]) != 0 || out[22] == 0 {
			return fmt.Errorf("bad header went out: %x", out[14:14+n])
		}
	default:
		if payload := int(binary.BigEndian.Uint16(out[18:])); 54+payload > len(out) ||
			out[21] == 0 {
			return fmt.Errorf("payload length %d in a frame of %d, hop limit %d", payload, len(out),
				out[21])
		}
	}
	return nil
}

// FuzzFrames: any frame, in any of the states that matter. Both contexts must agree on everything:
// no difference between them is inherent to a linear frame without offload marks.
func FuzzFrames(f *testing.F) {
	for i, frame := range fuzzSeeds() {
		f.Add(byte(i), frame, false)
		f.Add(byte(i+1), frame, true)
	}
	f.Fuzz(func(t *testing.T, selector byte, frame []byte, fix bool) {
		if len(frame) < 14 || len(frame) > maxFuzzFrame {
			return
		}
		b := newHarness(t)
		if fix {
			repair(frame)
		}
		if err := checkFrame(t, b, selector, frame); err != nil {
			t.Error(err)
		}
	})
}

// repair gives a mutated frame a right IPv4 header checksum, else nearly all would end there.
func repair(frame []byte) {
	if len(frame) >= 34 && frame[12] == 8 && frame[13] == 0 &&
		len(frame) >= 14+int(frame[14]&15)*4 && frame[14]&15 >= 5 {
		fixIPv4(frame)
	}
}

// TestMutatedFrames is the fuzz test's short form for every run: seeds with a few bytes changed.
func TestMutatedFrames(t *testing.T) {
	b := newHarness(t)
	const seed = 20260727
	random := rand.New(rand.NewPCG(seed, seed))
	seeds := fuzzSeeds()
	for i := range 1500 {
		frame := slices.Clone(seeds[random.IntN(len(seeds))])
		for range 1 + random.IntN(3) {
			at := random.IntN(len(frame))
			if random.IntN(3) > 0 {
				at = 12 + random.IntN(min(50,
					len(frame)-12)) // headers are more interesting than payload
			}
			frame[at] = []byte{byte(random.Uint32()), 0, 0xff, 1,
				frame[at] ^ 1<<random.IntN(8)}[random.IntN(5)]
		}
		if random.IntN(8) == 0 {
			frame = frame[:14+random.IntN(len(frame)-13)]
		}
		if random.IntN(4) > 0 {
			repair(frame)
		}
		selector := byte(random.IntN(2))
		if err := checkFrame(t, b, selector, frame); err != nil {
			t.Fatalf("frame %d (seed %d), selector %d: %v\n%x", i, seed, selector, err, frame)
		}
	}
}
