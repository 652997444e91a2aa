package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/masquerade"
)

// wantedMasquerade is nil when the configuration wants none. Pods and nodes see each
// other's own addresses: they know the way back.
func wantedMasquerade(cfg *config.Config, own *v1alpha1.Node, outward []string,
	nodes map[string]*v1alpha1.Node) *masquerade.Options {
	if !cfg.Masquerade.Enabled {
		return nil
	}
	want := &masquerade.Options{
		Instance: cfg.Instance, Uplinks: outward, PodCIDRs: own.Spec.PodCIDRs,
		Except: slices.Clone(cfg.Masquerade.Except),
	}
	if len(cfg.IPAM.Ranges) > 0 {
		want.PodCIDRs = cfg.IPAM.Ranges
	}
	for _, node := range nodes {
		want.Except = append(want.Except, node.Spec.PodCIDRs...)
		for _, addr := range node.Spec.Addresses {
			want.Except = append(want.Except, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	// Nodes come in no order; the same rules must look the same.
	slices.SortFunc(want.Except, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	want.Except = slices.Compact(want.Except)
	return want
}

// setMasquerade makes the host's rules the wanted ones; nil takes them away.
func setMasquerade(instance string, want *masquerade.Options) error {
	if want == nil {
		return masquerade.Remove(instance)
	}
	return masquerade.Apply(*want)
}

// outwardInterfaces are those by which pods' packets leave the node: the uplinks and, on a node
// whose way to the outside is another one, the interfaces of the default routes.
func outwardInterfaces(uplinks []string) ([]string, error) {
	names := slices.Clone(uplinks)
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if route.Dst != nil && !route.Dst.IP.IsUnspecified() {
			continue
		}
		indexes := []int{route.LinkIndex}
		for _, hop := range route.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
		for _, index := range indexes {
			// An interface that has just gone leads nowhere.
			if link, err := netlink.LinkByIndex(index); err == nil && link.Attrs().Name != "lo" {
				names = append(names, link.Attrs().Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
