package netdev

import (
	"fmt"
	stdmaps "maps"

	"github.com/safchain/ethtool"

	"weft.dev/weft/internal/netns"
)

// Features of interfaces, as ethtool calls them: the two of a pod's that XDP redirects depend on,
// and the two of an uplink that merge UDP packets which nobody on this node has a socket for; and
// the one of an uplink that takes VLAN tags off.
const (
	FeatureGRO        = "rx-gro"
	FeatureTxCsum     = "tx-checksum-ip-generic"
	FeatureUDPForward = "rx-udp-gro-forwarding"
	FeatureGROList    = "rx-gro-list"
	FeatureVLANParse  = "rx-vlan-hw-parse"
)

// What to do with features that were changed before and are not wanted any more.
const (
	KeepOld    = false
	RestoreOld = true
)

// ApplyOffloads sets features of an interface and notes what they were before Weft. Features that
// were noted and are not wanted any more are put back if restore is RestoreOld.
func (u *Undo) ApplyOffloads(key, netNS, iface string, wanted map[string]bool, restore bool) error {
	noted := u.originals(key)
	if len(noted) == 0 && len(wanted) == 0 {
		return nil
	}
	return netns.Do(netNS, func() error {
		var originals map[string]bool
		err := changeFeatures(iface, func(now map[string]bool) (change map[string]bool, err error) {
			change, originals = planOffloads(now, noted, wanted, restore)
			// All that is known stays noted until the change is made: a crash in between loses
			// nothing.
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

// SetFeatures changes those of the features that the interface has.
func SetFeatures(iface string, wanted map[string]bool) error {
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
func planOffloads(now, noted, wanted map[string]bool,
	restore bool) (change, originals map[string]bool) {
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
