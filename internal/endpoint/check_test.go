package endpoint

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/endpoint/endpointtest"
)

func TestCheckNamesTheDamage(t *testing.T) {
	b := newHarness(t)
	onHost := func(fn func(link netlink.Link) error) func(*AddResult) error {
		return func(r *AddResult) error {
			link, err := netlink.LinkByName(r.HostIf)
			if err != nil {
				return err
			}
			return fn(link)
		}
	}
	inside := func(fn func(link netlink.Link) error) func(*AddResult) error {
		return func(r *AddResult) error {
			f, err := os.Open(r.NetNS)
			if err != nil {
				return err
			}
			defer f.Close()
			return inNetNS(f, func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return fn(link)
			})
		}
	}
	for _, tc := range []struct {
		name, want string
		damage     func(*AddResult) error
	}{
		{"veth deleted", "interface weft", onHost(netlink.LinkDel)},
		{"host down", "is down", onHost(netlink.LinkSetDown)},
		{"pod down", "eth0 in the pod is down", inside(netlink.LinkSetDown)},
		{"host MAC", "instead of the gateway's", onHost(func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 9})
		})},
		{"pod MAC", "eth0 in the pod has MAC", inside(func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 9})
		})},
		{"pod renamed", "interface eth0 is missing in the pod", inside(func(l netlink.Link) error {
			if err := netlink.LinkSetDown(l); err != nil {
				return err
			}
			return netlink.LinkSetName(l, "eth9")
		})},
		{"pod address", "is missing on eth0 in the pod", inside(func(l netlink.Link) error {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			return netlink.AddrDel(l, &addrs[0])
		})},
		{"pod route", "route 0.0.0.0/0 via 169.254.1.1 is missing in the pod",
			inside(func(l netlink.Link) error {
				return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index,
					Gw:  GatewayIPv4.AsSlice(),
					Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}})
			})},
		{"host route", "is missing on the node", func(r *AddResult) error {
			link, err := netlink.LinkByName(r.HostIf)
			if err != nil {
				return err
			}
			return netlink.RouteDel(hostRoute(link, r.IPv6))
		}},
		{"neighbour", "permanent neighbour", func(r *AddResult) error {
			link, err := netlink.LinkByName(r.HostIf)
			if err != nil {
				return err
			}
			return netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index,
				IP: r.IPv4.AsSlice()})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ns, _ := endpointtest.NewPod(t)
			res := b.add("c1", ns)
			defer b.del("c1")
			if err := tc.damage(res); err != nil {
				t.Fatal(err)
			}
			err := b.check("c1")
			if !errors.Is(err, ErrUnhealthy) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			if again := b.add("c1", ns); again.IPv4 != res.IPv4 {
				if tc.name != "pod renamed" {
					t.Errorf("mended with %s instead of %s", again.IPv4, res.IPv4)
				}
			}
			if err := b.check("c1"); err != nil {
				t.Errorf("after a second ADD: %v", err)
			}
		})
	}
}
