package endpoint

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath"
)

// adoptVeth fills in the interface that an earlier plugin made. The host side is found
// through the pod side's peer index, which holds in the namespace of the peer.
func adoptVeth(info *Info, ns *os.File) error {
	pod, err := podHandle(ns)
	if err != nil {
		return err
	}
	defer pod.Close()
	host, err := hostHandle()
	if err != nil {
		return err
	}
	defer host.Close()
	inner, err := findLink(pod, info.PodIf, "in the pod")
	if err != nil {
		return fmt.Errorf("%w: ifName: %w: put weft-cni after the plugin that makes it", ErrInvalid, err)
	}
	outer, err := peerOf(inner, host)
	if err != nil {
		return err
	}
	gateway, err := gatewayOf(outer, host)
	if err != nil {
		return err
	}
	info.HostIf = outer.Attrs().Name
	info.MAC = inner.Attrs().HardwareAddr.String()
	info.GatewayMAC = gateway.String()
	info.MTU = inner.Attrs().MTU
	return nil
}

// SetDownUnhooked sets the node's end of an interface that another plugin made down, unless a program of Weft's
// filters what comes from it. It needs no manager.
func SetDownUnhooked(a Attachment, netnsPath string) error {
	ns, err := openNetNS(netnsPath)
	if err != nil {
		return err
	}
	defer ns.Close()
	info := Info{PodIf: a.IfName}
	if err := adoptVeth(&info, ns); err != nil {
		return err
	}
	outer, err := hostLink(info.HostIf)
	if err != nil {
		return err
	}
	if filtered, err := datapath.FiltersPod(outer); err != nil || filtered {
		return err
	}
	if err := netlink.LinkSetDown(outer); err != nil {
		return fmt.Errorf("set %s down: %w", info.HostIf, err)
	}
	return nil
}

// peerOf finds the node's end of a pod's veth, and makes sure that it is one: indexes
// repeat across namespaces, so each end must name the other.
func peerOf(inner netlink.Link, host *netlink.Handle) (netlink.Link, error) {
	if inner.Type() != "veth" {
		return nil, fmt.Errorf("%w: interface %s in the pod is a %s: weft-cni can only follow plugins that make a veth, such as bridge and ptp",
			ErrInvalid, inner.Attrs().Name, inner.Type())
	}
	outer, err := host.LinkByIndex(inner.Attrs().ParentIndex)
	if err != nil {
		return nil, fmt.Errorf("%w: the other end of %s is not on this node: %w", ErrInvalid, inner.Attrs().Name, err)
	}
	if outer.Type() != "veth" || outer.Attrs().ParentIndex != inner.Attrs().Index {
		return nil, fmt.Errorf("%w: the other end of %s is not in this node's network namespace", ErrInvalid, inner.Attrs().Name)
	}
	return outer, nil
}

// gatewayOf is the address that a chained pod sends to: that of the bridge which its
// host side is a port of, else of the host side itself.
func gatewayOf(outer netlink.Link, host *netlink.Handle) (net.HardwareAddr, error) {
	index := outer.Attrs().MasterIndex
	if index == 0 {
		return outer.Attrs().HardwareAddr, nil
	}
	master, err := host.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find the bridge of %s: %w", outer.Attrs().Name, err)
	}
	return master.Attrs().HardwareAddr, nil
}

// chainedGateway is gatewayOf by name.
func chainedGateway(hostIf string) (net.HardwareAddr, error) {
	host, err := hostHandle()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	outer, err := findLink(host, hostIf, "on the node")
	if err != nil {
		return nil, err
	}
	return gatewayOf(outer, host)
}

// errOtherPeer means that the pod's interface has another interface of the node as its other end.
var errOtherPeer = fmt.Errorf("other peer (%w)", errGone)

// checkPeers tells whether the pod's interface is the other end of the node's, with
// errGone if it certainly is not.
func checkPeers(info Info, host netlink.Link, ns *os.File) error {
	pod, err := podHandle(ns)
	if err != nil {
		return err
	}
	defer pod.Close()
	inner, err := findLink(pod, info.PodIf, "in the pod")
	if err != nil {
		return err
	}
	if inner.Attrs().ParentIndex != host.Attrs().Index || host.Attrs().ParentIndex != inner.Attrs().Index {
		return fmt.Errorf("%w: interface %s in the pod is not the other end of %s", errOtherPeer, info.PodIf, info.HostIf)
	}
	return nil
}
