package datapath

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestUpgradeOfDecidingMaps: where a map in which absence lets pass has another layout, the
// uplinks' hooks and the guard of before stay until it is filled, however often the agent dies in
// between, and nothing passes meanwhile that must not.
func TestUpgradeOfDecidingMaps(t *testing.T) {
	for _, tt := range []struct {
		mode   Mode
		engine string
		names  []string
	}{
		{ModeTC, "user", []string{"weft_routes"}},
		{ModeStack, "bpf", []string{"weft_ep_if", "weft_ep_addr", "weft_ep_slot"}},
	} {
		t.Run(strings.Join(tt.names, " "), func(t *testing.T) {
			w := newUpgradeWorld(t, tt.mode)
			w.opts.Encrypt.Engine = tt.engine
			w.before(t)
			w.closed(t, "before")
			was := w.programs(t)
			w.relayout(t, tt.names...)
			for _, when := range []string{"dead after Open", "dead again"} {
				must(t, w.start(t).Close())
				w.unchanged(t, was, when)
				w.closed(t, when)
			}

			d := w.start(t)
			must(t, w.setNodes(t, d))
			w.unchanged(t, was, "with the nodes")
			if err := w.inside(func() error { return d.AttachEndpoint(w.ep) }); err == nil {
				t.Error("an endpoint that the hooks of before do not know was attached")
			}
			if len(d.Problems()) != 1 || !strings.Contains(d.Problems()[0], "agent before") {
				t.Errorf("problems %v", d.Problems())
			}
			must(t, d.Close())
			w.closed(t, "dead after the nodes")

			d = w.start(t)
			must(t, w.enter(d))
			w.unchanged(t, was, "with the endpoints")
			died := errors.New("died here")
			d.fault = func(step string) error {
				if step == "maps pinned" {
					return died
				}
				return nil
			}
			if err := w.setNodes(t, d); !errors.Is(err, died) {
				t.Fatalf("%v, want to have died", err)
			}
			must(t, d.Close())
			w.unchanged(t, was, "dead before the hooks")
			w.closed(t, "dead before the hooks")

			d = w.start(t)
			w.closed(t, "the pinned maps are filled")
			w.replaced(t, was)
			must(t, errors.Join(w.setNodes(t, d), w.enter(d), w.finish(d)))
			w.closed(t, "after the upgrade")
			if len(d.Problems()) != 0 {
				t.Errorf("problems %v", d.Problems())
			}
			must(t, d.Close())
		})
	}
}

// TestUpgradeEndsByPrune: the nodes that come last, or endpoints that were not entered before, end
// the wait as well.
func TestUpgradeEndsByPrune(t *testing.T) {
	for _, nodesFirst := range []bool{true, false} {
		w := newUpgradeWorld(t, ModeStack)
		w.before(t)
		was := w.programs(t)
		w.relayout(t, bpf.Deciding...)
		d := w.start(t)
		prune := func() error { return w.inside(func() error { return d.Prune([]Endpoint{w.ep}) }) }
		steps := []func() error{prune, func() error { return w.setNodes(t, d) }}
		if nodesFirst {
			slices.Reverse(steps)
		}
		must(t, steps[0]())
		w.unchanged(t, was, "halfway")
		w.closed(t, "halfway")
		must(t, steps[1]())
		w.replaced(t, was)
		w.closed(t, "in the end")
		for _, name := range bpf.Deciding {
			if pins, _ := filepath.Glob(filepath.Join(w.dir,
				bpf.MapPin+name+"-*")); len(pins) != 1 {
				t.Errorf("pins of %s: %v", name, pins)
			}
		}
		must(t, d.Close())
	}
}

// TestRoutesOfAnotherLayout: routes are taken over by the names of their fields, so that the nodes
// keep their indexes, own ranges stay closed, and an agent without a memory learns what is the
// cluster's.
func TestRoutesOfAnotherLayout(t *testing.T) {
	w := newUpgradeWorld(t, ModeStack)
	w.before(t)
	w.relayout(t, "weft_routes")
	d := w.start(t)
	defer d.Close()
	want := []Inherited{{Prefix: mustPrefix("10.2.0.0/24")},
		{Prefix: mustPrefix("192.0.2.2/32"), Host: true}}
	if got := d.Inherited(); !slices.Equal(got, want) {
		t.Errorf("inherited %v, want %v", got, want)
	}
	key, own := bpf.RouteKeyOf(mustPrefix("10.1.0.0/24")), bpf.Route{}
	if err := d.maps.Routes.Lookup(&key, &own); err != nil || own != (bpf.Route{}) {
		t.Errorf("this node's own range: %+v, %v; want it closed", own, err)
	}
}

// TestUpgradeRefusesStrays: an interface whose endpoint is not known any more is refused also where
// its hook is one of before, which has a map with the endpoint in it. Its address is outside the
// node's ranges: else pre_routing refuses it as well.
func TestUpgradeRefusesStrays(t *testing.T) {
	w := newUpgradeWorld(t, ModeStack)
	w.opts.PodCIDRs = []netip.Prefix{mustPrefix("10.9.0.0/24")}
	w.before(t)
	w.relayout(t, "weft_ep_if", "weft_ep_addr", "weft_ep_slot")
	d := w.start(t)
	defer d.Close()
	must(t, w.setNodes(t, d))
	must(t, w.inside(func() error { return errors.Join(d.EnterEndpoints(nil), d.Prune(nil)) }))
	_, err := unix.Write(w.pod,
		newPacket(podA.MAC, gatewayMAC, podA.IPv4, otherNode).udp(1000, hiddenPort, 32).bytes())
	must(t, errors.Join(err, w.fromHost(otherNode, lastPort)))
	if sealed := w.noSecret(t, w.wire, "on the wire"); sealed != 0 {
		t.Errorf("%d packets of a pod without a record are sealed", sealed)
	}
}
