package endpoint

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netdev"
)

// RemoveInterface takes an attachment's veth away without a manager, for when no agent
// runs. It needs neither the record nor the pod's namespace, and leaves an interface that
// another plugin made. The record is freed by the next Restore, which finds the veth gone.
func RemoveInterface(a Attachment, netnsPath string) error {
	if err := a.validate(); err != nil {
		return err
	}
	if netdev.ExistsOnNode(a.HostIf()) {
		return deleteHostLinks(a.HostIf())
	}
	if netnsPath == "" {
		return nil
	}
	ns, err := openNetNS(netnsPath)
	if errors.Is(err, netdev.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	return removeFromPod(a, ns)
}

// removeFromPod deletes the pod's end, for a caller that is not in the node's network
// namespace. It knows the interface by its route to the gateway.
func removeFromPod(a Attachment, ns *os.File) error {
	pod, err := netdev.HandleAt(ns)
	if err != nil {
		return err
	}
	defer pod.Close()
	link, err := netdev.Find(pod, a.IfName, "in the pod")
	if errors.Is(err, netdev.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	routes, err := routesOf(pod, link)
	if err != nil {
		return fmt.Errorf("list routes in pod: %w", err)
	}
	ours := slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return prefixOf(r.Dst, r.Family) == prefixOf(hostNet(GatewayIPv4), 0) ||
			prefixOf(r.Dst, r.Family) == prefixOf(hostNet(GatewayIPv6), 0)
	})
	if !netdev.Veth.Is(link) || !ours {
		return nil
	}
	return netdev.Delete(pod, a.IfName)
}
