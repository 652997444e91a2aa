package datapath

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/flowtable"
)

// emptied has the flow table be one that an upgrade has emptied, for so many seconds from now. The
// clock of the programs is up to a tick behind this one: 0 may not be over yet.
func emptied(seconds int) func(*testing.T, *harness) {
	return func(t *testing.T, b *harness) {
		b.config.EitherUntil = uint32(int(time.Duration(flowtable.MonotonicNow())/time.Second) + seconds)
		must(t, b.changed())
	}
}

// passage is a packet of a connection that the flow table has lost, and what a hook does with it.
type passage struct {
	hook    string
	in      packet
	answers bool // connection tracking knows what it answers
	want    string
}

// TestPolicyLost: a connection that was lost goes on once who began it sends, whatever the other
// end, which may not begin one, has sent before; also where the host's stack translates its
// addresses, and egress hooks see others than these.
func TestPolicyLost(t *testing.T) {
	b := newHarness(t)
	for _, f := range policyFamilies {
		service := netip.MustParseAddr(map[bool]string{true: "10.96.0.10",
			false: "fd00:96::a"}[f.a.Is4()])
		toPod := func(src netip.Addr) packet { return newPacket(gatewayMAC, podA.MAC, src, f.a) }
		toWire := func(src netip.Addr) packet { return newPacket(uplinkMAC, peerMAC, src, f.world) }
		serves := policies{aOut: nothing,
			aIn: []PolicyEntry{at(allow(bpf.IdentityWorld, tcp), 80, 16)}}
		client, asked := fromPeer(f.a).src(f.world).tcp(1000, 80, ack, 8), fromA(service).tcp(1000,
			80, ack, 8)
		answer := fromA(f.world).tcp(80, 1000, ack, 8)
		for _, c := range []struct {
			name  string
			of    policies
			began netip.AddrPort // the flow's initiator afterwards
			steps []passage
		}{
			{"a pod serves the world", serves, netip.AddrPortFrom(f.world, 1000), []passage{
				{"from_pod", answer, false, "pass"},
				{"to_wire", toWire(f.a).tcp(80, 1000, ack, 8), false, "drop"},
				{"from_wire", client, false, "pass"},
				{"from_pod", answer, false, "pass"},
				{"to_wire", toWire(f.a).tcp(80, 1000, ack, 8), false, "pass"},
			}},
			{"a pod serves the world by a node port", serves, netip.AddrPortFrom(f.world, 1000),
				[]passage{
					{"from_pod", answer, false, "pass"},
					{"to_wire", toWire(f.own).tcp(80, 1000, ack, 8), false, "drop"},
					{"to_pod", toPod(f.world).tcp(1000, 80, ack, 8), false, "pass"},
					{"from_pod", answer, false, "pass"},
				}},
			{"a pod asks a service", policies{aOut: []PolicyEntry{allow(ofPeer, 0)}, aIn: nothing},
				netip.AddrPortFrom(f.a, 1000), []passage{
					{"to_pod", toPod(service).tcp(80, 1000, ack, 8), true, "drop"},
					{"from_pod", asked, false, "pass"},
					{"to_pod", toPod(service).tcp(80, 1000, ack, 8), true, "pass"},
					{"from_pod", asked, false, "pass"},
				}},
			{"a pod asks a service, and may be reached by all",
				policies{aOut: []PolicyEntry{allow(ofPeer, 0)}}, netip.AddrPortFrom(f.a, 1000),
				[]passage{
					{"to_pod", toPod(service).tcp(80, 1000, ack, 8), true, "pass"},
				}},
		} {
			t.Run(f.name+" "+c.name, func(t *testing.T) {
				b.reset(t)
				must(t, b.putUplink(b.index["wtup"]))
				c.of.enter(t, b)
				for i, s := range c.steps {
					var got string
					switch s.hook {
					case "to_pod":
						got = b.passStack(t, s.hook, "wta", "wtup", s.answers, s.in.bytes())
					case "to_wire":
						got = b.passStack(t, s.hook, "wtup", "wta", s.answers, s.in.bytes())
					default:
						got, _ = b.send(t, "tc", s.hook, ifaceFor(s.hook), s.in.bytes())
					}
					if got != s.want {
						t.Errorf("step %d, %s: %s, want %s; %v", i+1, s.hook, got, s.want,
							b.counted(t))
					}
				}
				for _, flow := range b.flowList(t) {
					if (flow.Src.Addr() == f.a || flow.Dst.Addr() == f.a) && flow.Src != c.began {
						t.Errorf("%v is said to have begun it, want %v", flow.Src, c.began)
					}
				}
			})
		}
	}
}

// TestPolicyAfterUpgrade: only a flow table that an upgrade has emptied lets either end have begun
// what it does not know, and no later run makes that time longer.
func TestPolicyAfterUpgrade(t *testing.T) {
	dir, first := pinHarness(t, 64)
	if first.Emptied["weft_flows4"] || first.Emptied["weft_flows6"] {
		t.Error("the first table of all has lost something")
	}
	must(t, first.Flows4.Put(&bpf.Key4{A: 1, B: 2, Proto: unix.IPPROTO_TCP}, &bpf.Flow{}))
	second, err := openMaps(dir, 128, true, slog.New(slog.DiscardHandler))
	must(t, err)
	defer second.Close()
	if second.Emptied["weft_flows4"] || !second.Created["weft_flows4"] {
		t.Error("a table of another size has taken the flows over")
	}
	pins, _ := filepath.Glob(filepath.Join(dir, bpf.MapPin+"weft_flows*"))
	for _, pin := range pins {
		parts := strings.Split(pin, "-")
		parts[len(parts)-2] = "00000000"
		must(t, os.Rename(pin, strings.Join(parts, "-")))
	}
	third, err := openMaps(dir, 128, true, slog.New(slog.DiscardHandler))
	must(t, err)
	defer third.Close()
	d := &Datapath{maps: third}
	now := uint32(time.Duration(flowtable.MonotonicNow()) / time.Second)
	d.allowEither()
	if got := d.config.EitherUntil; got <= now || got > now+uint32(eitherFor/time.Second)+60 {
		t.Errorf("after an upgrade: until %d, and it is %d", got, now)
	}
	next := &Datapath{maps: second}
	next.config.EitherUntil = now + 1
	if next.allowEither(); next.config.EitherUntil != now+1 {
		t.Errorf("the next run: until %d, want %d as before", next.config.EitherUntil, now+1)
	}
	next.config.EitherUntil = 1 << 31
	if next.allowEither(); next.config.EitherUntil > now+uint32(eitherFor/time.Second)+60 {
		t.Errorf("a time without end: until %d, and it is %d", next.config.EitherUntil, now)
	}
}
