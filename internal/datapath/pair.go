package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/hook"
)

// The pair that cuts what the stack and TC hooks send to packets of wire size (bpf/lib/pair.h). One per
// network namespace, as there is one agent.
const (
	pairIn  = "weft_host"
	pairOut = "weft_net"
)

// pairFeatures are what the pair's entry must not be able to do, so that the kernel does it before.
var pairFeatures = map[string]bool{
	"tx-checksum-ip-generic": false, "tx-scatter-gather": false, "tx-scatter-gather-fraglist": false,
	"tx-tcp-segmentation": false, "tx-tcp6-segmentation": false, "tx-tcp-ecn-segmentation": false,
	"tx-udp-segmentation": false, "tx-sctp-segmentation": false, "tx-gre-segmentation": false,
	"tx-udp_tnl-segmentation": false, "tx-vlan-offload": false,
}

// pairLinks are the indexes of weft_host and weft_net, if packets are sealed.
type pairLinks struct{ host, net uint32 }

// ensurePair makes the pair and hooks its far end.
func (d *Datapath) ensurePair() (pairLinks, error) {
	out, err := netlink.LinkByName(pairOut)
	if err != nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = pairIn, 65535
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: pairOut, PeerMTU: 65535}); err != nil {
			return pairLinks{}, fmt.Errorf("create %s: %w", pairIn, err)
		}
		if out, err = netlink.LinkByName(pairOut); err != nil {
			return pairLinks{}, fmt.Errorf("find %s: %w", pairOut, err)
		}
	}
	in, err := netlink.LinkByName(pairIn)
	if err != nil {
		return pairLinks{}, fmt.Errorf("find %s: %w", pairIn, err)
	}
	for _, name := range []string{pairIn, pairOut} {
		// Nothing may speak from these by itself: no link-local address, no MLD.
		if err := errors.Join(writeSysctl("ipv6/conf/"+name+"/disable_ipv6", "1"), quietInterface(name)); err != nil {
			return pairLinks{}, err
		}
	}
	if err := setFeatures(pairIn, pairFeatures); err != nil {
		return pairLinks{}, err
	}
	if err := d.links().Ensure(pairOut, out.Attrs().Index, d.progs.At(hook.Segmentation, hook.ByTC)); err != nil {
		return pairLinks{}, err
	}
	if err := errors.Join(netlink.LinkSetARPOff(in), netlink.LinkSetUp(out), netlink.LinkSetUp(in)); err != nil {
		return pairLinks{}, fmt.Errorf("set %s up: %w", pairIn, err)
	}
	return pairLinks{uint32(in.Attrs().Index), uint32(out.Attrs().Index)}, nil
}

// setFeatures changes those of the features that the interface has.
func setFeatures(iface string, wanted map[string]bool) error {
	return changeFeatures(iface, func(now map[string]bool) (map[string]bool, error) {
		change := map[string]bool{}
		for feature, on := range wanted {
			if was, known := now[feature]; known && was != on {
				change[feature] = on
			}
		}
		return change, nil
	})
}

// removePair takes the pair away, if it is there.
func removePair() error {
	if l, err := netlink.LinkByName(pairIn); err == nil {
		if err := netlink.LinkDel(l); err != nil {
			return fmt.Errorf("remove %s: %w", pairIn, err)
		}
	}
	return nil
}
