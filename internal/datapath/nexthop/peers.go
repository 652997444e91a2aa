package nexthop

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/inet"
)

// outerAddrs are the ends of the tunnel to a peer: IPv4 if both nodes have it, else IPv6.
func (t *Table) outerAddrs(n Node) (local, remote netip.Addr, ok bool) {
	for _, is4 := range []bool{true, false} {
		same := func(a netip.Addr) bool { return a.Is4() == is4 }
		from, to := slices.IndexFunc(t.opts.HostAddrs, same), slices.IndexFunc(n.Addresses, same)
		if from >= 0 && to >= 0 {
			return t.opts.HostAddrs[from], n.Addresses[to], true
		}
	}
	return local, remote, false
}

// errNoFamily says that a tunnel to a node has no two ends.
var errNoFamily = errors.New("no address of the same family as one of this node's: nothing can be sealed for it")

// syncPeer enters the ends of the tunnel to a peer, and whose its addresses are. What this host's
// own stack sends by the given routes is sealed on its way out, and must fit then.
func (t *Table) syncPeer(n Node, slot uint32, wireMTU int,
	routes []*netlink.Route) (changed bool, err error) {
	local, remote, ok := t.outerAddrs(n)
	for _, r := range routes {
		r.MTU = inet.SealedMTU(wireMTU, remote.Is6())
	}
	if !ok {
		return false, errNoFamily
	}
	if changed, err = t.host.SAs.SetTunnel(slot, local, remote, wireMTU); err != nil {
		return false, err
	}
	for _, a := range n.Addresses {
		key := bpf.ToAddr(a)
		if err := t.maps.PeerAddr.Put(&key, slot); err != nil {
			return false, fmt.Errorf("enter address %s of node %s: %w", a, n.Name, err)
		}
	}
	return changed, nil
}

// clearPeers forgets peers that are gone, with their keys and identities, also those of a previous
// run: the next owner of the index must not inherit them.
func (t *Table) clearPeers(current map[uint32]bool) error {
	wanted := map[bpf.Addr]bool{}
	for _, n := range t.list {
		for _, a := range n.Addresses {
			wanted[bpf.ToAddr(a)] = !n.Missing || wanted[bpf.ToAddr(a)]
		}
	}
	err := bpf.DeleteWhere(t.maps.PeerAddr, func(a bpf.Addr, _ uint32) bool { return !wanted[a] })
	if t.settled {
		return err
	}
	held, heldErr := t.heldSlots()
	err = errors.Join(err, heldErr)
	for slot := range held {
		if !current[slot] {
			err = errors.Join(err, t.clearSlot(slot, true))
		}
	}
	return err
}
