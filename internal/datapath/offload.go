package datapath

import (
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netdev"
)

// wantedOffloads says which features the pod side must have in this mode and with its datapath; a
// feature that is not listed is the pod's own business.
//
// An XDP redirect into a veth is dropped unless the receiving side polls (NAPI), which GRO turns
// on. And a frame that leaves a pod's stack with its checksum left to the device loses that mark in
// an XDP redirect: the far end would drop it.
func (d *Datapath) wantedOffloads(ep Endpoint) map[string]bool {
	switch {
	case d.mode.Active == ModeXDP:
		return map[string]bool{netdev.FeatureGRO: true, netdev.FeatureTxCsum: false}
	case d.hasXDPDatapath(ep):
		return map[string]bool{netdev.FeatureGRO: true}
	}
	return nil
}

// setOffloads brings an endpoint's pod side to the features it needs.
func (d *Datapath) setOffloads(ep Endpoint, restore bool) error {
	if d.sas != nil && d.sas.HasSealer() && ep.PodIf != "" {
		// Not undone: what it costs without a sealer is not to be seen.
		if err := netdev.FitSealer(ep.NetNS, ep.PodIf); err != nil {
			return err
		}
	}
	return d.undo.ApplyOffloads(ep.HostIf, ep.NetNS, ep.PodIf, d.wantedOffloads(ep), restore)
}

// setUplinkOffloads does the same for an uplink. A frame that the node's own stack sends
// out of a veth carries an unfinished checksum just like a pod's, and a peer whose end of that veth
// has an XDP program cannot know. Real NICs finish it on the way out.
//
// Nor shall the kernel merge ESP packets before a TC hook sees them, which would only have to be
// cut again: it does so with a UDP checksum, which IPv6 tunnels have. Those of sealers are merged
// on purpose (sealer_gro).
func (d *Datapath) setUplinkOffloads(uplink netlink.Link) error {
	wanted := map[string]bool{}
	if d.mode.Active == ModeXDP && netdev.Veth.Is(uplink) {
		wanted[netdev.FeatureTxCsum] = false
	}
	if d.mode.Active == ModeXDP && !netdev.Veth.Is(uplink) {
		// XDP does not see a tag that the card has taken off: frames of every VLAN would pass for
		// untagged ones.
		wanted[netdev.FeatureVLANParse] = false
	}
	if d.opts.Encrypt != nil {
		wanted[netdev.FeatureUDPForward], wanted[netdev.FeatureGROList] = false, false
	}
	if d.sas != nil && d.sas.HasSealer() {
		wanted[netdev.FeatureGRO] = true // sealer_gro says what is merged
	}
	return d.undo.ApplyOffloads(uplink.Attrs().Name, "", uplink.Attrs().Name, wanted,
		netdev.RestoreOld)
}
