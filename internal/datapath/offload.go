package datapath

import (
	"fmt"

	"github.com/safchain/ethtool"

	"weft.dev/weft/internal/netns"
)

// The two features of a pod's interface that XDP redirects depend on.
const (
	featureGRO    = "rx-gro"
	featureTxCsum = "tx-checksum-ip-generic"
)

// wantedOffloads says which features the pod side must have in this mode; a feature that is not
// listed is the pod's own business.
//
// An XDP redirect into a veth is dropped unless the receiving side polls (NAPI), which GRO turns on. And
// a frame that leaves a pod's stack with its checksum left to the device loses that mark in an
// XDP redirect: the far end would drop it.
func (d *Datapath) wantedOffloads(ep Endpoint) map[string]bool {
	switch {
	case d.mode.Active == ModeXDP:
		return map[string]bool{featureGRO: true, featureTxCsum: false}
	case d.mode.Active == ModeHybrid && !ep.Chained:
		return map[string]bool{featureGRO: true}
	}
	return nil
}

// setOffloads brings the pod side to the wanted features, noting what was, and puts back
// features that an earlier mode had changed and this one does not need.
func (d *Datapath) setOffloads(ep Endpoint) error {
	wanted := d.wantedOffloads(ep)
	back, err := d.undo.takeOffloads(ep.HostIf)
	if err != nil {
		return err
	}
	return netns.Do(ep.NetNS, func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool: %w", err)
		}
		defer tool.Close()
		now, err := tool.Features(ep.PodIf)
		if err != nil {
			return fmt.Errorf("read offloads of %s: %w", ep.PodIf, err)
		}
		change := map[string]bool{}
		for feature, was := range back {
			if now[feature] != was {
				change[feature] = was
			}
		}
		for feature, on := range wanted {
			delete(change, feature)
			original, noted := back[feature]
			if !noted {
				original = now[feature]
			}
			if err := d.undo.noteOffload(ep.HostIf, feature, original); err != nil {
				return err
			}
			if now[feature] != on {
				change[feature] = on
			}
		}
		if len(change) == 0 {
			return nil
		}
		if err := tool.Change(ep.PodIf, change); err != nil {
			return fmt.Errorf("set offloads of %s: %w", ep.PodIf, err)
		}
		return nil
	})
}

// restoreOffloads sets features of a pod's interface to the given values.
func restoreOffloads(netNS, podIf string, features map[string]bool) error {
	return netns.Do(netNS, func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool: %w", err)
		}
		defer tool.Close()
		return tool.Change(podIf, features)
	})
}
