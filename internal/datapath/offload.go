package datapath

import (
	"fmt"
	stdmaps "maps"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netns"
)

// The two features of a pod's interface that XDP redirects depend on, and the two of an uplink that merge UDP packets
// which nobody on this node has a socket for; and the one of an uplink that takes VLAN tags off.
const (
	featureGRO        = "rx-gro"
	featureTxCsum     = "tx-checksum-ip-generic"
	featureUDPForward = "rx-udp-gro-forwarding"
	featureGROList    = "rx-gro-list"
	featureVLANParse  = "rx-vlan-hw-parse"
)

// wantedOffloads says which features the pod side must have in this mode and on its road; a feature that is not
// listed is the pod's own business.
//
// An XDP redirect into a veth is dropped unless the receiving side polls (NAPI), which GRO turns on. And
// a frame that leaves a pod's stack with its checksum left to the device loses that mark in an
// XDP redirect: the far end would drop it.
func (d *Datapath) wantedOffloads(ep Endpoint) map[string]bool {
	switch {
	case d.mode.Active == ModeXDP:
		return map[string]bool{featureGRO: true, featureTxCsum: false}
	case d.hasXDPRoad(ep):
		return map[string]bool{featureGRO: true}
	}
	return nil
}

// setOffloads brings an endpoint's pod side to the features it needs.
func (d *Datapath) setOffloads(ep Endpoint, restore bool) error {
	return d.undo.applyOffloads(ep.HostIf, ep.NetNS, ep.PodIf, d.wantedOffloads(ep), restore)
}

// setUplinkOffloads does the same for an uplink. A frame that the node's own stack sends
// out of a veth carries an unfinished checksum just like a pod's, and a peer whose end of that veth has an
// XDP program cannot know. Real NICs finish it on the way out.
//
// Nor may the kernel merge ESP packets before a TC hook sees them: from_wire would have to refuse them (esp_merged).
// It does so with a UDP checksum, which IPv6 tunnels have.
func (d *Datapath) setUplinkOffloads(uplink netlink.Link) error {
	wanted := map[string]bool{}
	if d.mode.Active == ModeXDP && uplink.Type() == "veth" {
		wanted[featureTxCsum] = false
	}
	if d.mode.Active == ModeXDP && uplink.Type() != "veth" {
		// XDP does not see a tag that the card has taken off: frames of every VLAN would pass for untagged ones.
		wanted[featureVLANParse] = false
	}
	if d.opts.Encrypt != nil {
		wanted[featureUDPForward], wanted[featureGROList] = false, false
	}
	return d.undo.applyOffloads(uplink.Attrs().Name, "", uplink.Attrs().Name, wanted, restoreOld)
}

// What to do with features that an earlier mode had changed and this one does not need.
const (
	keepOld    = false
	restoreOld = true
)

// applyOffloads sets features of an interface and notes what they were before Weft. Features that were
// noted and are not wanted any more are put back if restore is restoreOld.
func (u *undoFile) applyOffloads(key, netNS, iface string, wanted map[string]bool, restore bool) error {
	noted := u.originals(key)
	if len(noted) == 0 && len(wanted) == 0 {
		return nil
	}
	return netns.Do(netNS, func() error {
		var originals map[string]bool
		err := changeFeatures(iface, func(now map[string]bool) (change map[string]bool, err error) {
			change, originals = planOffloads(now, noted, wanted, restore)
			// All that is known stays noted until the change is made: a crash in between loses nothing.
			all := stdmaps.Clone(originals)
			stdmaps.Copy(all, noted)
			return change, u.setOffloads(key, offloads{netNS, iface, all})
		})
		if err != nil {
			return err
		}
		return u.setOffloads(key, offloads{netNS, iface, originals})
	})
}

// changeFeatures makes those changes that plan wants, knowing which features an interface has now.
func changeFeatures(iface string, plan func(now map[string]bool) (map[string]bool, error)) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer tool.Close()
	now, err := tool.Features(iface)
	if err != nil {
		return fmt.Errorf("read offloads of %s: %w", iface, err)
	}
	change, err := plan(now)
	if err != nil || len(change) == 0 {
		return err
	}
	if err := tool.Change(iface, change); err != nil {
		return fmt.Errorf("set offloads of %s: %w", iface, err)
	}
	return nil
}

// planOffloads says which features to change, and what to remember as their original setting.
func planOffloads(now, noted, wanted map[string]bool, restore bool) (change, originals map[string]bool) {
	change, originals = map[string]bool{}, map[string]bool{}
	for feature, was := range noted {
		if _, still := wanted[feature]; still {
			continue
		}
		if !restore {
			originals[feature] = was
		} else if now[feature] != was {
			change[feature] = was
		}
	}
	for feature, on := range wanted {
		original, known := noted[feature]
		if !known {
			original = now[feature]
		}
		originals[feature] = original
		if now[feature] != on {
			change[feature] = on
		}
	}
	return change, originals
}
