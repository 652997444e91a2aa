package datapath

import (
	"net/netip"
	"slices"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
)

// TestEveryHook: Drop finds what any mode may have pinned.
func TestEveryHook(t *testing.T) {
	d := &Datapath{progs: &hook.Programs{}}
	for _, mode := range []ModeStatus{{Active: ModeXDP}, {Active: ModeTC}, {Active: ModeStack},
		{Active: ModeTC, XDPDatapath: true}} {
		for _, generic := range []bool{false, true} {
			for _, ep := range []Endpoint{{}, {Chained: true}, {XDPDatapath: true},
				{Chained: true, XDPDatapath: true}} {
				d.mode, d.opts.GenericXDP = mode, generic
				for _, h := range append(d.hooksFor(ep), d.uplinkHooks()...) {
					if !slices.ContainsFunc(hook.Every(),
						func(k hook.Attachment) bool {
							return k.Name == h.Name &&
								k.Kind == h.Kind
						}) {
						t.Errorf("%+v, generic %v, %+v: %s of kind %s would never be detached",
							mode, generic, ep, h.Name, h.Kind)
					}
				}
			}
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, a := range []netip.Addr{podA.IPv4, podA.IPv6, addr("::"), addr("255.255.255.255")} {
		if got := bpf.FromAddr(bpf.ToAddr(a)); got != a {
			t.Errorf("%s became %s", a, got)
		}
	}
	if bpf.ToAddr(netip.Addr{}) != (bpf.Addr{}) || bpf.FromBE32(bpf.BE32(podA.IPv4)) != podA.IPv4 ||
		bpf.Ntohs(bpf.Ntohs(0x1234)) != 0x1234 {
		t.Error("conversions do not agree")
	}
	for prefix, bits := range map[string]uint32{"10.1.2.3/24": 152, "0.0.0.0/0": 128,
		"fd00::1/64": 96, "::/0": 32, "10.1.2.3/32": 160} {
		key := bpf.RouteKeyOf(mustPrefix(prefix))
		if key.Prefixlen != bits ||
			netip.AddrFrom16(key.Addr).Unmap() != mustPrefix(prefix).Masked().Addr() {
			t.Errorf("%s: %+v", prefix, key)
		}
	}
}
