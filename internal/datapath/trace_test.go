package datapath

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
)

// state is the content of every map that packets can change, byte for byte.
func (b *harness) state(t *testing.T) map[string]string {
	t.Helper()
	s := map[string]string{}
	for name, m := range b.maps.ByName {
		if name == "weft_trace" || name == "weft_scratch" || name == "weft_clock" ||
			name == "weft_search" || name == "weft_judgement" || m.Type() == ebpf.RingBuf ||
			m.MaxEntries() > 1<<15 {
			continue
		}
		keys, err := bpftest.Keys(m)
		must(t, err)
		for _, k := range keys {
			value, err := m.LookupBytes(k)
			must(t, err)
			if len(bytes.Trim(value, "\x00")) > 0 {
				s[fmt.Sprintf("%s %x", name, k)] = string(value)
			}
		}
	}
	s["counters"] = fmt.Sprint(sorted(b.counted(t)))
	return s
}

// TestTracingChangesNothing runs the tracing copies on packets of every kind: they note a verdict
// and leave every map as it was.
func TestTracingChangesNothing(t *testing.T) {
	sent := fromA(peer4).udp(1000, 53, 120)
	for _, c := range []struct {
		name, hook string
		in         packet
		verdict    uint8
	}{
		{"known flow", "from_pod", sent, bpf.VerdictRemote},
		{"new flow", "from_pod", fromA(podB.IPv6).udp(9, 9, 9), bpf.VerdictLocal},
		{"to the outside", "from_pod", fromA(world4).udp(9, 9, 9), bpf.VerdictStack},
		{"established TCP, FIN", "from_pod", fromA(peer4).tcp(1000, 80, fin|ack, 9),
			bpf.VerdictRemote},
		{"spoofed", "from_pod", fromA(peer4).src(podB.IPv4).udp(9, 9, 9), bpf.VerdictDrop},
		{"truncated", "from_pod", sent.set(16, 0xff, 0xff), bpf.VerdictDrop},
		{"first fragment", "from_pod", sent.fragment(0, 64, true), bpf.VerdictRemote},
		{"unknown fragment", "from_pod", sent.id(9).fragment(64, 128, true), bpf.VerdictDrop},
		{"TTL 1", "from_pod", sent.ttl(1), bpf.VerdictDrop},
		{"too big", "from_pod", fromA(peer4).udp(9, 9, 1600), bpf.VerdictDrop},
		{"ARP", "from_pod", arpRequest(podA, podA.IPv4, GatewayIPv4), bpf.VerdictAnswered},
		{"solicitation", "from_pod", solicit(podA, podA.IPv6, GatewayIPv6, true),
			bpf.VerdictAnswered},
		{"IGMP", "from_pod", fromA(addr("224.0.0.22")).raw(2, make([]byte, 8)),
			bpf.VerdictAbsorbed},
		{"from the wire", "from_wire", fromPeer(podA.IPv4).udp(9, 9, 9), bpf.VerdictLocal},
		{"reply from the wire", "from_wire", fromPeer(podA.IPv4).udp(53, 1000, 9),
			bpf.VerdictLocal},
		{"ICMP error", "from_wire", fromPeer(podA.IPv4).icmpError(3, 3, 0, sent, 28),
			bpf.VerdictLocal},
		{"ICMP error without a flow", "from_wire",
			fromPeer(podA.IPv4).icmpError(3, 3, 0, fromA(peer4).udp(1, 2, 3), 28), bpf.VerdictDrop},
	} {
		for _, context := range contexts {
			t.Run(c.name+"/"+context, func(t *testing.T) {
				b := newHarness(t)
				establishedA(t, b)
				warm(t, b, context, "from_pod", "wta", sent.bytes())
				program := b.traced(t, context, c.hook)
				before := b.state(t)
				var steps []bpf.TraceStep
				for range 2 {
					steps = b.steps(t, program, context, ifaceFor(c.hook), c.in.bytes())
				}
				if n := len(steps); n == 0 || steps[n-1].Step != bpf.StepVerdict ||
					steps[n-1].A != uint32(c.verdict) {
					t.Errorf("steps %+v, want the last to be verdict %s", steps,
						bpf.VerdictNames[c.verdict])
				}
				for key, value := range b.state(t) {
					if before[key] != value {
						t.Errorf("%s: was %x, is %x", key, before[key], value)
					}
				}
			})
		}
	}
}

// TestTrace: what `weft trace` says, for both kinds of programs.
func TestTrace(t *testing.T) {
	b := newHarness(t)
	for _, mode := range []ModeStatus{{Active: ModeXDP}, {Active: ModeTC},
		{Active: ModeTC, XDPDatapath: true}} {
		from := podA
		b.mode, from.XDPDatapath = mode, mode.XDPDatapath
		for _, c := range []struct {
			to                            string
			proto                         uint8
			verdict, reason, out, nextHop string
		}{
			{"10.1.0.11:80", unix.IPPROTO_TCP, "local", "", "wtb", "wtb"},
			{"[fd00:1::11]:80", unix.IPPROTO_TCP, "local", "", "wtb", "wtb"},
			{"10.2.0.20:53", unix.IPPROTO_UDP, "remote", "", "wtup", "node 1"},
			{"[fd00:2::20]:0", unix.IPPROTO_ICMPV6, "remote", "", "wtup", "node 1"},
			{"10.2.0.20:0", unix.IPPROTO_ICMP, "remote", "", "wtup", "node 1"},
			{"10.3.0.30:53", unix.IPPROTO_UDP, "stack", "", "", "node 2"},
			{"198.51.100.7:443", unix.IPPROTO_TCP, "stack", "", "", ""},
			{"10.1.0.99:80", unix.IPPROTO_TCP, "drop", "no_endpoint", "", ""},
			{"224.0.0.1:80", unix.IPPROTO_UDP, "drop", "multicast", "", ""},
		} {
			var got *Trace
			must(t, b.inside(func() (err error) {
				got, err = b.Trace(from, netip.MustParseAddrPort(c.to), c.proto)
				return err
			}))
			if got.Verdict != c.verdict || got.Reason != c.reason || got.OutIf != c.out ||
				got.NextHop != c.nextHop {
				t.Errorf("%+v, to %s: %+v", mode, c.to, got)
			}
			for _, s := range got.Steps {
				if s.Hook != "from_pod" || s.Step == "" || s.Detail == "" {
					t.Errorf("%+v, to %s: step %+v", mode, c.to, s)
				}
			}
		}
	}
	if flows := b.flowList(t); len(flows) != 0 {
		t.Errorf("traces made flows: %+v", flows)
	}
}

// TestCraft: the crafted packets are valid by the programs' own parser and by the oracle.
func TestCraft(t *testing.T) {
	for _, c := range []struct {
		dst   string
		proto uint8
		want  packet
	}{
		{"10.2.0.20:80", unix.IPPROTO_TCP, fromA(peer4).tcp(54321, 80, syn, 0)},
		{"10.2.0.20:53", unix.IPPROTO_UDP, fromA(peer4).udp(54321, 53, 0)},
		{"10.2.0.20:0", unix.IPPROTO_ICMP, fromA(peer4).echo(0, 0)},
		{"[fd00:2::20]:80", unix.IPPROTO_TCP, fromA(peer6).tcp(54321, 80, syn, 0)},
		{"[fd00:2::20]:0", unix.IPPROTO_ICMP, fromA(peer6).echo(0, 0)},
	} {
		dst := netip.MustParseAddrPort(c.dst)
		got, err := craft(podA, netip.AddrPortFrom(addrOf(podA, dst.Addr()), traceSourcePort), dst,
			c.proto)
		must(t, err)
		want := c.want.id(0).bytes()
		// Transport checksums, sequence numbers and windows are not looked at by a router.
		l4 := 34
		if dst.Addr().Is6() {
			l4 = 54
		}
		if len(got) != len(want) || !bytes.Equal(got[:l4], want[:l4]) {
			t.Errorf("%s:\n got %x\nwant %x", c.dst, got, want)
		}
		if c.proto != unix.IPPROTO_ICMP && c.proto != unix.IPPROTO_ICMPV6 &&
			!bytes.Equal(got[l4:l4+4], want[l4:l4+4]) {
			t.Errorf("%s: ports %x, want %x", c.dst, got[l4:l4+4], want[l4:l4+4])
		}
	}
	if _, err := craft(podA, netip.AddrPort{}, netip.MustParseAddrPort("10.2.0.20:1"),
		132); err == nil {
		t.Error("SCTP: want an error that names the protocols")
	}
}

// TestTraceNeedsTheFamily: an endpoint without IPv6 cannot send to it.
func TestTraceNeedsTheFamily(t *testing.T) {
	ep := podA
	ep.IPv6 = netip.Addr{}
	if _, err := (&Datapath{}).Trace(ep, netip.AddrPortFrom(peer6, 80),
		unix.IPPROTO_TCP); err == nil {
		t.Error("want an error")
	}
}
