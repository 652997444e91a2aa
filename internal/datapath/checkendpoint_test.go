package datapath

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
)

// TestCheckEndpoint: every hook and map entry of an endpoint that is missing is named, and
// attaching again mends it.
func TestCheckEndpoint(t *testing.T) {
	b := hookHarness(t, ModeTC)
	ep := Endpoint{Slot: 3, HostIf: "wtp0", PodIf: "wtp0-peer", MAC: mac(3), GatewayMAC: gatewayMAC,
		IPv4: addr("10.1.0.33"), IPv6: addr("fd00:1::33"), MTU: 1500}
	must(t, b.inside(func() error {
		l, err := veth("wtp0", 0)
		if err != nil {
			return err
		}
		if err := errors.Join(b.AttachEndpoint(ep), b.CheckEndpoint(ep)); err != nil {
			return err
		}
		key4, key6 := bpf.AddrKeyOf(0, ep.IPv4), bpf.AddrKeyOf(0, ep.IPv6)
		for want, damage := range map[string]func() error{
			"from_pod is not attached to wtp0": func() error { return hook.Detach(hook.Path(b.opts.BPFDir, "from_pod", hook.TCIngress, "wtp0")) },
			"to_pod is not attached to wtp0":   func() error { return hook.Detach(hook.Path(b.opts.BPFDir, "to_pod", hook.TCEgress, "wtp0")) },
			"does not belong to wtp0":          func() error { return b.maps.EpIf.Delete(uint32(l.Attrs().Index)) },
			"address 10.1.0.33":                func() error { return b.maps.EpAddr.Delete(&key4) },
			"address fd00:1::33":               func() error { return b.maps.EpAddr.Delete(&key6) },
		} {
			if err := damage(); err != nil {
				return err
			}
			if err := b.CheckEndpoint(ep); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
			if err := errors.Join(b.AttachEndpoint(ep), b.CheckEndpoint(ep)); err != nil {
				t.Errorf("attached again after %q: %v", want, err)
			}
		}
		return netlink.LinkDel(l)
	}))
	if err := b.CheckEndpoint(ep); err == nil {
		t.Error("an interface that is gone is in order")
	}
}

// TestAttachWithoutNamespace: an endpoint whose namespace cannot be entered is hooked on the node's
// side, and the error says so.
func TestAttachWithoutNamespace(t *testing.T) {
	b := hookHarness(t, ModeTC)
	ep := Endpoint{Slot: 3, HostIf: "wtp0", NetNS: "/nonexistent", PodIf: "eth0", MAC: mac(3),
		GatewayMAC: gatewayMAC, IPv4: addr("10.1.0.33"), MTU: 1500}
	must(t, b.inside(func() error {
		if _, err := veth("wtp0", 0); err != nil {
			return err
		}
		if err := b.AttachEndpoint(ep); err == nil ||
			!strings.Contains(err.Error(), "/nonexistent") {
			t.Errorf("error %v", err)
		}
		return b.CheckEndpoint(ep)
	}))
}
