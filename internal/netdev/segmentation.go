package netdev

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// The veth that cuts what the stack and TC hooks send to packets of wire size (bpf/lib/segment.h).
// One per network namespace, as there is one agent.
const (
	SegmentationIn  = "weft_host"
	SegmentationOut = "weft_net"
)

// segmentationMTU lets in whatever the stack may send as one.
const segmentationMTU = 65535

// segmentationFeatures are what the segmentation veth's entry must not be able to do, so that the
// kernel does it before.
var segmentationFeatures = map[string]bool{
	"tx-checksum-ip-generic": false, "tx-scatter-gather": false,
	"tx-scatter-gather-fraglist": false,
	"tx-tcp-segmentation":        false, "tx-tcp6-segmentation": false,
	"tx-tcp-ecn-segmentation": false,
	"tx-udp-segmentation":     false, "tx-sctp-segmentation": false, "tx-gre-segmentation": false,
	"tx-udp_tnl-segmentation": false, "tx-vlan-offload": false,
}

// EnsureSegmentation makes the segmentation veth and returns the indexes of its two ends. It goes
// up once hook has hooked the far one.
func EnsureSegmentation(hook func(out netlink.Link) error) (in, out uint32, err error) {
	far, err := netlink.LinkByName(SegmentationOut)
	if err != nil {
		if err := Veth.Make(&netlink.Handle{},
			Pair{Name: SegmentationIn, Peer: SegmentationOut, MTU: segmentationMTU}); err != nil {
			return 0, 0, err
		}
		if far, err = netlink.LinkByName(SegmentationOut); err != nil {
			return 0, 0, fmt.Errorf("find %s: %w", SegmentationOut, err)
		}
	}
	near, err := netlink.LinkByName(SegmentationIn)
	if err != nil {
		return 0, 0, fmt.Errorf("find %s: %w", SegmentationIn, err)
	}
	for _, name := range []string{SegmentationIn, SegmentationOut} {
		if err := errors.Join(silence(name), quiet(name)); err != nil {
			return 0, 0, err
		}
	}
	if err := SetFeatures(SegmentationIn, segmentationFeatures); err != nil {
		return 0, 0, err
	}
	if err := hook(far); err != nil {
		return 0, 0, err
	}
	if err := errors.Join(netlink.LinkSetARPOff(near), netlink.LinkSetUp(far),
		netlink.LinkSetUp(near)); err != nil {
		return 0, 0, fmt.Errorf("set %s up: %w", SegmentationIn, err)
	}
	return uint32(near.Attrs().Index), uint32(far.Attrs().Index), nil
}

// RemoveSegmentation takes the segmentation veth away, if it is there.
func RemoveSegmentation() error {
	if l, err := netlink.LinkByName(SegmentationIn); err == nil {
		if err := netlink.LinkDel(l); err != nil {
			return fmt.Errorf("remove %s: %w", SegmentationIn, err)
		}
	}
	return nil
}
