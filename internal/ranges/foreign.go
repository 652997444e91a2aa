package ranges

import "net/netip"

// shared is the space that carriers and clusters use besides RFC 1918 (RFC 6598).
var shared = netip.MustParsePrefix("100.64.0.0/10")

// foreign says why an address outside all nodes' ranges cannot be a pod's because its node says so,
// "" if it can. It would be that node's for all others: whoever may publish endpoints could take
// the traffic of any machine in the world.
func (l *lesson) foreign(a netip.Addr) string {
	a = a.Unmap()
	_, _, inside := l.cluster.find(one(a))
	switch {
	case a.IsUnspecified():
		return "which is unspecified"
	case a.IsLoopback():
		return "which is loopback"
	case a.IsLinkLocalUnicast():
		return "which is link-local"
	case !a.IsGlobalUnicast():
		return "which is multicast or broadcast"
	case l.entries[one(a)].Kind == Address:
		return "which is or was that of node " + l.entries[one(a)].Node
	case inside:
		return ""
	case len(l.in.Cluster) > 0:
		return "which is outside clusterCIDRs and its node's podCIDRs"
	case !a.IsPrivate() && !shared.Contains(a):
		return "which is public and outside its node's podCIDRs: name a range with it in clusterCIDRs if it is the cluster's"
	}
	return ""
}

// disown forgets that an address was an endpoint's of a node, where it never could be. One that
// only left clusterCIDRs stays lost: it was the cluster's.
func (l *lesson) disown(p netip.Prefix, node string) {
	a := p.Addr().Unmap()
	if e := l.entries[p]; e.Kind == Endpoint && e.Node == node && !a.IsPrivate() &&
		!shared.Contains(a) {
		delete(l.entries, p)
	}
}
