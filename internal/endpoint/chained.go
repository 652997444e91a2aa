package endpoint

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/netdev"
)

// adoptChained fills in the interface that an earlier plugin made, and the pod's way to the node by
// it.
func adoptChained(info *Info, ns *os.File) error {
	outer, err := adoptVeth(info, ns)
	if err != nil {
		return err
	}
	gateway, err := datapath.ChainedGateway(outer)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	info.GatewayMAC = gateway.Attrs().HardwareAddr.String()
	return nil
}

// adoptVeth finds the host side through the pod side's peer index, which holds in the namespace of
// the peer.
func adoptVeth(info *Info, ns *os.File) (outer netlink.Link, err error) {
	pod, err := netdev.HandleAt(ns)
	if err != nil {
		return nil, err
	}
	defer pod.Close()
	host, err := netdev.Handle()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	inner, err := netdev.Find(pod, info.PodIf, "in the pod")
	if err != nil {
		return nil, fmt.Errorf("%w: ifName: %w: put weft-cni after the plugin that makes it",
			ErrInvalid, err)
	}
	if outer, err = peerOf(inner, host); err != nil {
		return nil, err
	}
	info.HostIf = outer.Attrs().Name
	info.MAC = inner.Attrs().HardwareAddr.String()
	info.MTU = inner.Attrs().MTU
	return outer, nil
}

// SetDownUnhooked sets the node's end of an interface that another plugin made down, unless a
// program of Weft's filters what comes from it. It needs no manager.
func SetDownUnhooked(a Attachment, netnsPath string) error {
	ns, err := openNetNS(netnsPath)
	if err != nil {
		return err
	}
	defer ns.Close()
	outer, err := adoptVeth(&Info{PodIf: a.IfName}, ns)
	if err != nil {
		return err
	}
	if filtered, err := datapath.FiltersPod(outer); err != nil || filtered {
		return err
	}
	if err := netlink.LinkSetDown(outer); err != nil {
		return fmt.Errorf("set %s down: %w", outer.Attrs().Name, err)
	}
	return nil
}

// peerOf finds the node's end of a pod's veth, and makes sure that it is one: indexes
// repeat across namespaces, so each end must name the other.
func peerOf(inner netlink.Link, host *netlink.Handle) (netlink.Link, error) {
	if !netdev.Veth.Is(inner) {
		return nil, fmt.Errorf("%w: interface %s in the pod is a %s: weft-cni can only follow plugins that make a veth, such as bridge and ptp",
			ErrInvalid, inner.Attrs().Name, inner.Type())
	}
	outer, err := host.LinkByIndex(netdev.PeerIndex(inner))
	if err != nil {
		return nil, fmt.Errorf("%w: the other end of %s is not on this node: %w", ErrInvalid,
			inner.Attrs().Name, err)
	}
	if !netdev.Veth.Ends(inner, outer) {
		return nil, fmt.Errorf("%w: the other end of %s is not in this node's network namespace",
			ErrInvalid, inner.Attrs().Name)
	}
	return outer, nil
}

// chainedGateway is the address that a chained pod sends to, whose interface on the node is outer.
func chainedGateway(info Info, outer netlink.Link) (net.HardwareAddr, error) {
	gateway, err := datapath.ChainedGateway(outer)
	if err != nil {
		return net.ParseMAC(info.GatewayMAC) // a pod that was added before such were refused
	}
	return gateway.Attrs().HardwareAddr, nil
}

// verifyGateway compares the address that a chained pod's record has for its gateway with the
// gateway's.
func verifyGateway(info Info, outer netlink.Link) error {
	mac, err := chainedGateway(info, outer)
	if err == nil && mac.String() != info.GatewayMAC {
		err = fmt.Errorf("the gateway of %s has MAC %s instead of %s", info.HostIf, mac,
			info.GatewayMAC)
	}
	return err
}

// errOtherPeer means that the pod's interface has another interface of the node as its other end.
var errOtherPeer = fmt.Errorf("other peer (%w)", netdev.ErrGone)

// checkPeers tells whether the pod's interface is the other end of the node's, with
// netdev.ErrGone if it certainly is not.
func checkPeers(info Info, host netlink.Link, ns *os.File) error {
	pod, err := netdev.HandleAt(ns)
	if err != nil {
		return err
	}
	defer pod.Close()
	inner, err := netdev.Find(pod, info.PodIf, "in the pod")
	if err != nil {
		return err
	}
	if !netdev.Veth.Ends(inner, host) {
		return fmt.Errorf("%w: interface %s in the pod is not the other end of %s", errOtherPeer,
			info.PodIf, info.HostIf)
	}
	return nil
}
