package wirefuzz

import "net/netip"

// The specification: what may be delivered of what arrives at a node's uplink. It is written from
// docs/encryption.md, docs/drop-reasons.md and ARCHITECTURE.md, for encryption.mode strict, and is
// the same in every datapath mode.

// claim is under what a frame arrives: as it is, or sealed by a peer in somebody's name.
type claim int

const (
	inCleartext  claim = iota
	genuine            // a pod's own packet, sealed by its node, that was not delivered before
	asHost             // sealed by a peer under its host's identity, whatever is inside
	asPod              // sealed by a peer under the identity of one of its pods, whatever is inside
	notGenuine         // ESP that nobody sealed like this, or that was delivered already
	asNoPodThere       // sealed by a peer under an identity that it hosts no pod of
)

// cluster is what the nodes have been told of each other.
type cluster struct {
	pods  map[netip.Addr]string   // to the pod's name
	nodes map[netip.Addr]string   // to the node's name
	homes map[netip.Prefix]string // pod ranges, to the node's name
	plain map[netip.Addr]bool     // addresses that a policy lets travel in cleartext
	// isolated are the pods that a policy lets nobody but their own node begin with.
	isolated map[string]bool
}

// home is the node in whose pod range an address is, empty if it is in none.
func (c *cluster) home(a netip.Addr) string {
	for r, node := range c.homes {
		if r.Contains(a) {
			return node
		}
	}
	return ""
}

// martian is an address that no packet on a wire may come from, or that is only good on one link.
func martian(a netip.Addr) bool {
	first := a.AsSlice()[0]
	compatible := a.Is6() && netip.PrefixFrom(a, 96).Masked().Addr() == netip.IPv6Unspecified() &&
		a.AsSlice()[12] == 0 && a.AsSlice()[13] == 0 && a.AsSlice()[14] == 0 && a.AsSlice()[15] <= 1
	return a.Is4() && (first == 0 || first == 127 || first >= 224) || a.Is4In6() || compatible ||
		a.IsMulticast() || a.IsLinkLocalUnicast()
}

// mayOrigin says whether a packet from src, to or about dst, may have come to node at in that way.
func (c *cluster) mayOrigin(how claim, at string, src, dst netip.Addr) bool {
	node, home := c.nodes[src], c.home(src)
	switch how {
	case genuine:
		return true
	case asHost: // the peer's own addresses, or what it routes for the world
		return home == "" && (node == "" || node != at)
	case asPod: // a pod of the peer's own range, or the peer's address if that has translated the pod's
		return home != "" && home != at || node != "" && node != at
	case notGenuine, asNoPodThere:
		return false
	}
	if home == "" && node == "" {
		return true // the world
	}
	if home == at || node == at {
		return false // ourselves, from outside
	}
	return c.plain[src] || c.plain[dst]
}

// mayReachPod says whether a pod may get a packet that came to node at, and why not.
func (c *cluster) mayReachPod(how claim, at string, p packet, pod string) (bool, string) {
	for _, id := range p.tags {
		if id != 0 {
			return false, "a VLAN is the host's, never a pod's"
		}
	}
	switch {
	case !p.ip:
		return false, "not IP"
	case p.bad != "":
		return false, "malformed: " + p.bad
	case c.pods[p.dst] != pod:
		return false, "not its address"
	case c.isolated[pod]:
		return false, "a policy isolates it"
	case how != genuine && martian(p.src):
		return false, "a source that no host has on a wire"
	case !c.mayOrigin(how, at, p.src, p.dst):
		return false, "the sender is not who it says, or had to seal it"
	case how == inCleartext && p.quoted && !c.mayReport(at, p):
		return false, "an ICMP error about a packet that its sender cannot have seen"
	case p.control &&
		how != inCleartext: // in cleartext it has crossed a router, which its hop limit tells every receiver
		return false, "speaks for a link, through a tunnel"
	}
	return true, ""
}

// mayReport says whether somebody outside can have seen the packet that an ICMP error is about: one
// that the pod sent, that left its node, and that was readable on the way.
func (c *cluster) mayReport(at string, p packet) bool {
	from, to := p.of[0], p.of[1]
	if from != p.dst {
		return false
	}
	if c.home(to) == "" && c.nodes[to] == "" {
		return true
	}
	return c.home(to) != at && c.nodes[to] != at && (c.plain[from] || c.plain[to])
}

// mayReportToHost says whether somebody outside can have seen the packet that an ICMP error to node
// at, or one to be routed by it, is about. That a sender may send in cleartext counts for that
// sender.
func (c *cluster) mayReportToHost(at string, p packet) bool {
	from, to := p.of[0], p.of[1]
	if p.fragment || !to.IsValid() {
		return false
	}
	return c.home(to) == "" || c.home(to) == at || c.plain[to] || c.plain[from] && from == p.dst
}

// mayHideError says whether an ICMP error may be behind what could not be read.
func mayHideError(p packet) bool {
	tcpOrUDP := p.proto == 6 || p.proto == 17 || p.proto == 136
	return p.bad != "" && (p.dst.Is4() && p.proto == 1 || p.dst.Is6() && !tcpOrUDP)
}

// mayReachHost says whether the host's stack may take a packet that came to it, or to be routed by
// it.
func (c *cluster) mayReachHost(how claim, at string, p packet) (bool, string) {
	for _, id := range p.tags {
		if id != 0 {
			return false, "a VLAN for which the host has no interface"
		}
	}
	switch {
	case how == notGenuine:
		return true, "" // as it is: what is inside stays unread
	case !p.ip:
		return false, "not IP"
	case how == inCleartext && p.control:
		return true, "" // a link's own business, which its kernel judges
	case how == inCleartext && (c.home(p.src) == at || c.nodes[p.src] == at):
		return false, "ourselves, from outside"
	case how == inCleartext && (p.quoted && !c.mayReportToHost(at, p) || mayHideError(p)):
		return false, "an ICMP error about a packet that its sender cannot have seen, or what may hide one"
	case how == inCleartext && c.nodes[p.src] != "":
		return true, "" // nodes talk to each other in cleartext
	case !c.mayOrigin(how, at, p.src, p.dst):
		return false, "the sender is not who it says, or had to seal it"
	case how != inCleartext && p.control:
		return false, "speaks for a link, through a tunnel"
	}
	return true, ""
}
