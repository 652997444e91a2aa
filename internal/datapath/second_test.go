package datapath

import (
	"reflect"
	"slices"
	"testing"

	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
)

// TestPodDatapath: which endpoint has which datapath, what is attached and set for it, and what is
// said about it.
func TestPodDatapath(t *testing.T) {
	d := &Datapath{progs: &hook.Programs{}}
	auto, noRedirect := ModeStatus{Asked: ModeAuto, Active: ModeTC,
		XDPDatapath: true}, ModeStatus{Asked: ModeAuto, Active: ModeTC}
	explicit := func(m Mode) ModeStatus { return ModeStatus{Asked: m, Active: m} }
	gro := map[string]bool{netdev.FeatureGRO: true}
	for _, tt := range []struct {
		name string
		mode ModeStatus
		ep   Endpoint
		want PodDatapath
		kind hook.Kind // of from_pod on the endpoint's own interface
		gro  map[string]bool
	}{
		{"auto, ordinary", auto, Endpoint{}, PodDatapath{Name: "tc", Why: "mode auto"},
			hook.TCIngress, nil},
		{"auto, asks", auto, Endpoint{XDPDatapath: true},
			PodDatapath{Name: "xdp", Why: "asked for"}, hook.XDP, gro},
		{"auto, asks, chained", auto, Endpoint{XDPDatapath: true, Chained: true},
			PodDatapath{"tc", "asked for xdp, which an interface of another CNI plugin cannot have",
				true}, hook.TCIngress, nil},
		{"auto without XDP redirect, asks", noRedirect, Endpoint{XDPDatapath: true},
			PodDatapath{"tc", "asked for xdp, which this kernel cannot do: it has no XDP redirect",
				true}, hook.TCIngress, nil},
		{"tc, ordinary", explicit(ModeTC), Endpoint{}, PodDatapath{Name: "tc", Why: "mode tc"},
			hook.TCIngress, nil},
		{"tc, asks", explicit(ModeTC), Endpoint{XDPDatapath: true},
			PodDatapath{"tc",
				"asked for xdp, which pods get in modes auto and xdp: this node's is tc", true},
			hook.TCIngress, nil},
		{"stack, asks", explicit(ModeStack), Endpoint{XDPDatapath: true},
			PodDatapath{"stack",
				"asked for xdp, which pods get in modes auto and xdp: this node's is stack", true},
			hook.TCIngress, nil},
		{"xdp, asks", explicit(ModeXDP), Endpoint{XDPDatapath: true},
			PodDatapath{Name: "xdp", Why: "mode xdp"}, hook.XDP,
			map[string]bool{netdev.FeatureGRO: true, netdev.FeatureTxCsum: false}},
		{"xdp, ordinary", explicit(ModeXDP), Endpoint{}, PodDatapath{Name: "xdp", Why: "mode xdp"},
			hook.XDP, map[string]bool{netdev.FeatureGRO: true, netdev.FeatureTxCsum: false}},
	} {
		d.mode = tt.mode
		if got := d.PodDatapath(tt.ep); got != tt.want {
			t.Errorf("%s: datapath %+v, want %+v", tt.name, got, tt.want)
		}
		for _, h := range d.hooksFor(tt.ep) {
			if h.Name == "from_pod" && h.Kind != tt.kind {
				t.Errorf("%s: from_pod is of kind %s, want %s", tt.name, h.Kind, tt.kind)
			}
		}
		if got := d.wantedOffloads(tt.ep); !reflect.DeepEqual(got, tt.gro) {
			t.Errorf("%s: offloads %v, want %v", tt.name, got, tt.gro)
		}
		if second := d.hasXDPDatapath(tt.ep); second != (tt.want == PodDatapath{Name: "xdp",
			Why: "asked for"}) {
			t.Errorf("%s: second interface %v", tt.name, second)
		}
	}
}

// TestSecondInterface: what a second interface's program leaves to the stack goes on as if it had
// come in by the first, on the slow path and on the fast one; all else is as on any interface.
func TestSecondInterface(t *testing.T) {
	b := newHarness(t)
	fromPod, err := b.progs.Second()
	must(t, err)
	must(t, b.putEndpoint(podA, []int{b.index["wta"], b.index["wtx"]}))
	world := addr("198.51.100.7")
	for _, tt := range []struct {
		name, iface string
		in          packet
		want        string
		counts      []string
	}{
		{"to the world, new", "wtx", fromA(world).udp(1000, 53, 8), "redirect",
			[]string{"1 egress stack 1"}},
		{"to the world, cached", "wtx", fromA(world).udp(1000, 53, 8), "redirect",
			[]string{"1 egress stack 2"}},
		{"to the node", "wtx", fromA(node6).udp(1000, 53, 8), "redirect",
			[]string{"1 egress stack 3"}},
		{"to a pod", "wtx", fromA(podB.IPv4).udp(1000, 53, 8), "redirect", nil},
		{"spoofed", "wtx", fromA(world).src(podB.IPv4).udp(1000, 53, 8), "drop",
			[]string{"1 egress spoofed_ip 1"}},
		{"of no endpoint", "wtup", fromA(world).udp(1000, 53, 8), "drop",
			[]string{"0 egress unknown_interface 1"}},
	} {
		verdict, _ := b.runProgram(t, fromPod.Program, "tc", tt.iface, tt.in.bytes())
		if verdict != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, verdict, tt.want)
		}
		counted := b.counted(t)
		for _, want := range tt.counts {
			if !slices.Contains(counted, want) {
				t.Errorf("%s: counted %q, not %q", tt.name, counted, want)
			}
		}
	}
	if verdict, _ := b.send(t, "tc", "from_pod", "wta",
		fromA(world).udp(1000, 53, 8).bytes()); verdict != "pass" {
		t.Errorf("on the first interface: %s, want pass", verdict)
	}
}
