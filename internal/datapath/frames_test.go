package datapath

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
)

// runWith runs one frame with a context of the test's own.
func (b *harness) runWith(program *ebpf.Program, context any,
	frame []byte) (uint32, []byte, error) {
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512), Repeat: 1,
		Context: context}
	var code uint32
	err := b.inside(func() (err error) {
		code, err = program.Run(options)
		return err
	})
	return code, options.DataOut, err
}

// TestGSO: a frame that stands for many packets is judged by the size of each, and counted as that
// many.
func TestGSO(t *testing.T) {
	b := newHarness(t)
	for _, c := range []struct {
		name     string
		in       packet
		segment  uint32
		segments uint32
		fits     bool
	}{
		{"IPv4 TCP, segments of exactly the MTU", fromA(peer4).tcp(1000, 80, syn, 1400), 560, 3,
			true},
		{"IPv4 TCP, segments of the MTU and one byte", fromA(peer4).tcp(1000, 80, syn, 1400), 561,
			3, false},
		{"IPv6 TCP, segments of exactly the MTU", fromA(peer6).tcp(1000, 80, syn, 1400), 540, 3,
			true},
		{"IPv6 TCP, segments of the MTU and one byte", fromA(peer6).tcp(1000, 80, syn, 1400), 541,
			3, false},
		{"IPv4 UDP, segments of exactly the MTU", fromA(peer4).udp(1000, 80, 1400), 572, 3, true},
		{"IPv4 UDP, segments of the MTU and one byte", fromA(peer4).udp(1000, 80, 1400), 573, 3,
			false},
		{"IPv4 options count, too", fromA(peer4).tcp(1000, 80, syn, 1400).opts(1, 1, 1, 1), 557, 3,
			false},
		{"IPv6 headers count, too",
			fromA(peer6).tcp(1000, 80, syn, 1400).ext(unix.IPPROTO_DSTOPTS, optionsHeader(8)), 533,
			3, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.reset(t)
			b.setPeer(t,
				bpf.Nexthop{Ifindex: uint32(b.index["wtup"]), Flags: bpf.NexthopResolved, Mtu: 600,
					Dmac: bpf.ToMAC(peerMAC), Smac: bpf.ToMAC(uplinkMAC)})
			for range 2 {
				frame := c.in.bytes()
				code, out, err := b.runWith(b.progs.Get("from_pod", hook.TCIngress),
					&skbContext{Ifindex: uint32(b.index["wta"]), GSOSize: c.segment,
						GSOSegs: c.segments}, frame)
				must(t, err)
				if v := verdictOf("tc", code); v != "redirect" {
					if c.fits {
						t.Fatalf("%s", v)
					}
					continue
				}
				if refused := len(reasonsIn(b.counted(t))) > 0; refused == c.fits {
					t.Fatalf("refused: %v", refused)
				}
				if c.fits {
					must(t, toPeer(frame, out))
				}
			}
			want := "1 egress remote 6"
			if !c.fits {
				want = "1 egress too_big 6"
			}
			if got := b.counted(t); len(got) != 1 || got[0] != want {
				t.Errorf("counters %v, want %s", got, want)
			}
		})
	}
}

// TestJumbo: frames of several buffers, with XDP's frags.
func TestJumbo(t *testing.T) {
	b := newHarness(t)
	const mtu = 9000
	b.setPeer(t,
		bpf.Nexthop{Ifindex: uint32(b.index["wtup"]),
			Flags: bpf.NexthopResolved | bpf.NexthopXdpOut, Mtu: mtu, Dmac: bpf.ToMAC(peerMAC),
			Smac: bpf.ToMAC(uplinkMAC)})
	for name, p := range map[string]packet{"IPv4": fromA(peer4), "IPv6": fromA(peer6)} {
		headers := 28
		if p.to.Is6() {
			headers = 48
		}
		for _, context := range contexts {
			for _, size := range []int{mtu, mtu + 1} {
				b.clearAll(t)
				frame := p.udp(1000, 53, size-headers).bytes()
				var ctx any = &skbContext{Ifindex: uint32(b.index["wta"])}
				if context == "xdp" {
					ctx = &xdpContext{DataEnd: uint32(len(frame)),
						IngressIfindex: uint32(b.index["wta"])}
				}
				code, out, err := b.runWith(b.program(context, "from_pod"), ctx, frame)
				if errors.Is(err, unix.EINVAL) {
					t.Logf("%s, %s: this kernel's test_run takes no frame of %d bytes", name,
						context, len(frame))
					continue
				}
				must(t, err)
				if v := verdictOf(context, code); v != "redirect" {
					t.Errorf("%s, %s, %d bytes: %s %v", name, context, size, v, b.counted(t))
					continue
				}
				if size <= mtu {
					must(t, toPeer(frame, out))
					continue
				}
				want := icmpWant{3, 4, mtu, node4}
				if p.to.Is6() {
					want = icmpWant{2, 0, mtu, node6}
				}
				must(t, want.check(frame, out))
			}
		}
	}
}

// clearAll takes the counters back to zero.
func (b *harness) clearAll(t *testing.T) {
	for slot := range uint16(4) {
		must(t, b.clearCounters(slot))
	}
}

// TestNonLinear: TC frames whose headers are not in the linear part are pulled in, and judged the
// same.
func TestNonLinear(t *testing.T) {
	b := newHarness(t)
	tried := 0
	for name, c := range map[string]struct {
		in   packet
		want string
	}{
		"IPv4 UDP":     {fromA(peer4).udp(1, 2, 400), "redirect"},
		"IPv6 TCP":     {fromA(podB.IPv6).tcp(1, 2, syn, 400), "redirect"},
		"IPv4 spoofed": {fromA(peer4).src(podB.IPv4).udp(1, 2, 400), "drop"},
		"IPv6 headers up to 320": {fromA(peer6).tcp(1, 2, syn, 400).ext(unix.IPPROTO_DSTOPTS,
			optionsHeader(264)), "redirect"},
		"IPv4 total length too long": {fromA(peer4).udp(1, 2, 400).set(16, 2, 0), "drop"},
		"IPv4 TTL 1":                 {fromA(peer4).udp(1, 2, 400).ttl(1), "redirect"},
	} {
		for _, linear := range []int{14, 20, 34, 54, 60, 100} {
			b.reset(t)
			frame := c.in.bytes()
			code, _, err := b.runWith(b.progs.Get("from_pod", hook.TCIngress),
				&skbContext{Ifindex: uint32(b.index["wta"]), DataEnd: uint32(linear)}, frame)
			if errors.Is(err, unix.EINVAL) {
				continue
			}
			must(t, err)
			tried++
			if v := verdictOf("tc", code); v != c.want {
				t.Errorf("%s, %d bytes linear: %s, want %s (%v)", name, linear, v, c.want,
					b.counted(t))
			}
		}
	}
	if tried == 0 {
		t.Skip("needs Linux 6.19 or later: this kernel's test_run makes no skb with paged data")
	}
}
