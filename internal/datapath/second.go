package datapath

import (
	"errors"
	"fmt"
	"net"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/netns"
)

// openSecondInterface hooks the second pair's host side, sets the pair up, and then sends the pod's
// packets there.
func (d *Datapath) openSecondInterface(ep Endpoint, ifindex int) error {
	name := netdev.SecondHostIf(ep.HostIf)
	fromPod, err := d.progs.Second()
	if err != nil {
		return err
	}
	if err := d.links().EnsureOne(fromPod, name, ifindex); err != nil {
		return err
	}
	if err := d.step("second hook"); err != nil {
		return err
	}
	if _, err := netdev.SetUp(name); err != nil {
		return err
	}
	return netns.Do(ep.NetNS, func() error {
		second, err := netdev.SetUp(netdev.SecondPodIf)
		if err != nil {
			return err
		}
		podIf, err := net.InterfaceByName(ep.PodIf)
		if err != nil {
			return fmt.Errorf("find %s in the pod: %w", ep.PodIf, err)
		}
		return d.ensurePodOut(ep, podIf.Index, uint32(second.Attrs().Index))
	})
}

// ensurePodOut attaches pod_out to the pod's own interface.
func (d *Datapath) ensurePodOut(ep Endpoint, ifindex int, target uint32) error {
	podOut, err := d.progs.PodOut(target)
	if err != nil {
		return err
	}
	return d.links().EnsureOne(podOut, ep.HostIf, ifindex)
}

// removeSecondInterface takes an endpoint off the XDP datapath: first the redirect, then the pair.
// The pair's hook goes with it: what is still on its way there is checked to the last.
func (d *Datapath) removeSecondInterface(ep Endpoint) error {
	name := netdev.SecondHostIf(ep.HostIf)
	for _, a := range d.progs.At(hook.PodOwn, hook.ByXDP) {
		if err := hook.Detach(hook.Path(d.opts.BPFDir, a.Name, a.Kind, ep.HostIf)); err != nil {
			return err
		}
	}
	ifindex, err := netdev.RemoveSecond(ep.HostIf)
	if err != nil {
		return err
	}
	if ifindex != 0 {
		err = bpf.DeleteKey(d.maps.EpIf, &ifindex)
	}
	return errors.Join(err, d.links().Drop(name))
}
