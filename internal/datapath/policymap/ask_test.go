package policymap

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestIdentityAt: an endpoint goes before what others have published, and that before routes.
func TestIdentityAt(t *testing.T) {
	table := open(t)
	routes := map[string]bpf.Route{
		"192.0.2.1/32": {Flags: bpf.RouteHost}, "192.0.2.2/32": {Node: 1, Flags: bpf.RouteHost},
		"192.0.2.3/32": {Flags: bpf.RouteHost | bpf.RouteNoNode}, "10.1.0.0/16": {},
	}
	for text, route := range routes {
		key := bpf.RouteKeyOf(netip.MustParsePrefix(text))
		must(t, table.maps.Routes.Put(&key, &route))
	}
	endpoint := bpf.AddrKeyOf(7, netip.MustParseAddr("10.1.0.5"))
	must(t, table.maps.EpAddr.Put(&endpoint, &bpf.Endpoint{Identity: 300}))
	own := bpf.AddrKeyOf(0, netip.MustParseAddr("10.1.0.6"))
	must(t, table.maps.EpAddr.Put(&own, &bpf.Endpoint{Identity: 301}))
	if _, err := table.SetIdentities(map[netip.Addr]uint32{netip.MustParseAddr("10.1.0.6"): 302,
		netip.MustParseAddr("10.1.0.7"): 303}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		network uint32
		addr    string
		want    uint32
	}{
		{0, "192.0.2.1", bpf.IdentityHost}, {0, "192.0.2.2", bpf.IdentityRemoteHost},
		{0, "192.0.2.3", bpf.IdentityRemoteHost},
		{0, "10.1.0.5", bpf.IdentityUnknown}, {7, "10.1.0.5", 300}, {0, "10.1.0.6", 301},
		{0, "10.1.0.7", 303},
		{7, "10.1.0.7", bpf.IdentityWorld}, {0, "203.0.113.1", bpf.IdentityWorld},
		{0, "2001:db8::9", bpf.IdentityWorld},
	} {
		if got, err := table.IdentityAt(tt.network, netip.MustParseAddr(tt.addr)); got != tt.want ||
			err != nil {
			t.Errorf("%s in network %d is %d, %v; want %d", tt.addr, tt.network, got, err, tt.want)
		}
	}
}

// TestAsk: what counts is the longest match about each peer, and of these the highest precedence,
// then what denies.
func TestAsk(t *testing.T) {
	table := open(t)
	const class, slot = MaxIdentity + 9, 5
	set, err := table.Add([]Entry{
		{Direction: Ingress, Peer: 300, Protocol: 6, Port: 80, PortBits: 16, Allow: true,
			Precedence: 5, Rule: 1},
		{Direction: Ingress, Peer: 300, Protocol: 6, Precedence: 5, Rule: 2},
		{Direction: Ingress, Peer: class, Allow: true, Precedence: 5, Rule: 3},
		{Direction: Ingress, Peer: Anybody, Protocol: 6, Port: 0x2000, PortBits: 4, Allow: true,
			Precedence: 5, Rule: 4},
		{Direction: Ingress, Peer: Anybody, Protocol: 17, Port: 53, PortBits: 16, Precedence: 9,
			Rule: 5},
	})
	must(t, err)
	must(t, table.maps.EpSlot.Put(uint32(slot), &bpf.EpSlot{Sets: [2]uint32{0, set}}))
	pod, ranged, both, host := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("192.0.2.1")
	if _, err := table.SetIdentities(map[netip.Addr]uint32{pod: 300, both: 300}); err != nil {
		t.Fatal(err)
	}
	if _, err := table.SetClasses(map[netip.Prefix]uint32{netip.MustParsePrefix("10.2.0.0/16"): class}); err != nil {
		t.Fatal(err)
	}
	route := bpf.RouteKeyOf(netip.PrefixFrom(host, 32))
	must(t, table.maps.Routes.Put(&route, &bpf.Route{Flags: bpf.RouteHost}))
	for _, tt := range []struct {
		name      string
		direction Direction
		peer      netip.Addr
		protocol  uint8
		port      uint16
		allow     bool
		rule      uint32
	}{
		{"the port", Ingress, pod, 6, 80, true, 1},
		{"another port", Ingress, pod, 6, 81, false, 2},
		{"a range of ports, but the identity's entry denies", Ingress, pod, 6, 0x2001, false, 2},
		{"a range of ports", Ingress, netip.MustParseAddr("10.1.0.2"), 6, 0x2fff, true, 4},
		{"behind it", Ingress, netip.MustParseAddr("10.1.0.2"), 6, 0x3000, false, 0},
		{"a class", Ingress, ranged, 1, 0, true, 3},
		{"a class, and a higher precedence that denies", Ingress, ranged, 17, 53, false, 5},
		{"allowed by class and identity", Ingress, both, 6, 80, true, 1},
		{"allowed by class, denied by identity", Ingress, both, 6, 81, false, 2},
		{"nobody's entry", Ingress, pod, 132, 80, false, 0},
		{"this host", Ingress, host, 17, 53, true, 0},
		{"a direction without a set", Egress, pod, 6, 81, true, 0},
	} {
		got, err := table.Ask(Question{Slot: slot, Direction: tt.direction, Peer: tt.peer,
			Protocol: tt.protocol, Port: tt.port})
		if err != nil || got.Allow != tt.allow || got.Rule != tt.rule {
			t.Errorf("%s: %+v, %v; want %t by rule %d", tt.name, got, err, tt.allow, tt.rule)
		}
	}
}

// TestAskAuthenticated: who is no endpoint here is authenticated if what it sends comes sealed.
func TestAskAuthenticated(t *testing.T) {
	table := open(t)
	const slot = 6
	set, err := table.Add([]Entry{
		{Direction: Ingress, Peer: Anybody, Allow: true, Precedence: 5, Rule: 1},
		{Direction: Ingress, Peer: Unauthenticated, Precedence: 9, Rule: 2},
		{Direction: Ingress, Peer: Unauthenticated, Protocol: 6, Port: 81, PortBits: 16},
	})
	must(t, err)
	must(t, table.maps.EpSlot.Put(uint32(slot), &bpf.EpSlot{Sets: [2]uint32{set, set}}))
	at := netip.MustParseAddr
	own, here, there, exempt := at("10.3.0.1"), at("10.3.0.2"), at("10.4.0.1"), at("10.4.0.2")
	lost, world := at("10.5.0.1"), at("203.0.113.1")
	key := bpf.AddrKeyOf(0, here)
	must(t, table.maps.EpAddr.Put(&key, &bpf.Endpoint{Identity: 300}))
	for prefix, route := range map[string]bpf.Route{"10.3.0.0/24": {}, "10.4.0.0/24": {Node: 1},
		"10.5.0.0/24": {Flags: bpf.RouteNoNode}} {
		key := bpf.RouteKeyOf(netip.MustParsePrefix(prefix))
		must(t, table.maps.Routes.Put(&key, &route))
	}
	plain := bpf.RouteKeyOf(netip.PrefixFrom(exempt, 32))
	must(t, table.maps.Plain.Put(&plain, uint8(1)))
	for _, seals := range []bool{true, false} {
		config := bpf.Config{}
		if seals {
			config.Flags = bpf.ConfigSeal
		}
		must(t, table.maps.Config.Put(uint32(0), &config))
		for peer, want := range map[netip.Addr]bool{here: true, there: seals, exempt: false,
			lost: false, world: false} {
			for port, want := range map[uint16]bool{80: want, 81: true} {
				got, err := table.Ask(Question{Slot: slot, Direction: Ingress, Peer: peer, Own: own,
					Protocol: 6, Port: port})
				rule := map[bool]uint32{true: 1, false: 2}[want]
				if err != nil || got.Allow != want || got.Rule != rule {
					t.Errorf("sealing %v, %s to %d: %+v, %v; want %v", seals, peer, port, got, err,
						want)
				}
			}
		}
		got, err := table.Ask(Question{Slot: slot, Direction: Ingress, Peer: there, Own: exempt,
			Protocol: 6, Port: 80})
		if err != nil || got.Allow {
			t.Errorf("to an address that may travel in cleartext: %+v, %v", got, err)
		}
		got, err = table.Ask(Question{Slot: slot, Direction: Egress, Peer: world, Own: own,
			Protocol: 6, Port: 80})
		if err != nil || got.Rule != 0 {
			t.Errorf("egress: %+v, %v", got, err)
		}
	}
}

// TestAskMarked: what a set's number says of it is believed only where all say the truth: a build
// that did not know has numbered on from such a one.
func TestAskMarked(t *testing.T) {
	table := open(t)
	const set, slot = 5 | bpf.PolicySetNoAnybody, 3
	key := Entry{Direction: Ingress}.key(set)
	value := Entry{Allow: true}.value()
	must(t, table.maps.Policy.Put(&key, &value))
	must(t, table.maps.EpSlot.Put(uint32(slot), &bpf.EpSlot{Sets: [2]uint32{0, set}}))
	q := Question{Slot: slot, Direction: Ingress, Peer: netip.MustParseAddr("203.0.113.1"),
		Own: netip.MustParseAddr("10.1.0.5"), Protocol: 6, Port: 80}
	next, err := Open(table.maps)
	must(t, err)
	if next.Marked() || !table.Marked() {
		t.Errorf("numbers are to be believed: %v, without sets %v", next.Marked(), table.Marked())
	}
	for flags, want := range map[uint32]bool{0: true, bpf.ConfigMarkedSets: false} {
		must(t, table.maps.Config.Put(uint32(0), &bpf.Config{Flags: flags}))
		if a, err := next.Ask(q); err != nil || a.Allow != want {
			t.Errorf("flags %d: %+v, %v; want %v", flags, a, err, want)
		}
	}
	class := bpf.RouteKeyOf(netip.MustParsePrefix("203.0.113.0/24"))
	must(t, table.maps.Classes.Put(&class, uint32(MaxIdentity+9)))
	for flags, want := range map[uint32]uint32{0: MaxIdentity + 9, bpf.ConfigNoClasses: 0} {
		must(t, table.maps.Config.Put(uint32(0), &bpf.Config{Flags: flags}))
		if a, err := next.Ask(q); err != nil || a.Class != want {
			t.Errorf("flags %d: %+v, %v; want class %d", flags, a, err, want)
		}
	}
}
