package agent

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/masquerade"
	"weft.dev/weft/internal/netns/nettest"
)

func TestRemoveStateKeepsOtherInstances(t *testing.T) {
	base := t.TempDir()
	for _, file := range []string{"ipam.json", "endpoints/1.json", "lab-a/ipam.json"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(base, file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := &config.Config{Paths: config.Paths{State: base}}
	for range 2 {
		if err := removeState(cfg); err != nil {
			t.Fatal(err)
		}
	}
	entries, _ := os.ReadDir(base)
	if len(entries) != 1 || entries[0].Name() != "lab-a" {
		t.Errorf("left %v", entries)
	}
	cfg.Instance = "lab-a"
	if err := removeState(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(base, "lab-a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("instance stays: %v", err)
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestWantedMasquerade(t *testing.T) {
	own := nodeObject("a", "192.0.2.1", "10.1.0.0/24")
	nodes := map[string]*v1alpha1.Node{"a": own, "b": nodeObject("b", "10.2.0.1", "10.2.0.0/24")}
	cfg := config.Default()
	if wantedMasquerade(cfg, own, []string{"w0"}, nodes) != nil {
		t.Error("masquerade without being asked")
	}
	cfg.Instance, cfg.Masquerade.Enabled, cfg.Masquerade.Except = "blue", true, prefixes("10.1.0.0/16", "fd00::/8")
	got := wantedMasquerade(cfg, own, []string{"w0"}, nodes)
	want := &masquerade.Options{
		Instance: "blue", Uplinks: []string{"w0"}, PodCIDRs: prefixes("10.1.0.0/24"),
		Except: prefixes("10.1.0.0/16", "10.1.0.0/24", "10.2.0.0/24", "10.2.0.1/32", "192.0.2.1/32",
			"fd00::/8"),
	}
	if !got.Equal(want) {
		t.Errorf("%+v", got)
	}
}

func TestOutwardInterfaces(t *testing.T) {
	nettest.Do(t, nettest.New(t, "agent"), func() error {
		if names, err := outwardInterfaces([]string{"wire0"}); err != nil ||
			!slices.Equal(names, []string{"wire0"}) {
			t.Errorf("no default route: %v %v", names, err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "out0"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "out1"}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("out0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
			Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}); err != nil {
			return err
		}
		names, err := outwardInterfaces([]string{"wire0"})
		if !slices.Equal(names, []string{"out0", "wire0"}) {
			t.Errorf("with a default route: %v", names)
		}
		return err
	})
}
