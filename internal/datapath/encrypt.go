package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
)

// outerAddrs are the ends of the tunnel to a peer: IPv4 if both nodes have it, else IPv6.
func (d *Datapath) outerAddrs(n Node) (local, remote netip.Addr, ok bool) {
	for _, is4 := range []bool{true, false} {
		same := func(a netip.Addr) bool { return a.Is4() == is4 }
		from, to := slices.IndexFunc(d.opts.HostAddrs, same), slices.IndexFunc(n.Addresses, same)
		if from >= 0 && to >= 0 {
			return d.opts.HostAddrs[from], n.Addresses[to], true
		}
	}
	return local, remote, false
}

// openEncryption makes what sealing needs besides the programs, or takes away what an earlier run had
// made.
func (d *Datapath) openEncryption() error {
	if err := d.openAssociations(d.opts.BPFDir); err != nil {
		return err
	}
	if d.opts.Encrypt == nil {
		return errors.Join(detachVMFork(d.opts.BPFDir), d.links().Drop(netdev.SegmentationOut), netdev.RemoveSegmentation(),
			d.openSealer())
	}
	var err error
	d.segment.host, d.segment.net, err = netdev.EnsureSegmentation(func(out netlink.Link) error {
		return d.links().Ensure(out.Attrs().Name, out.Attrs().Index, d.progs.At(hook.Segmentation, hook.ByTC))
	})
	if err != nil {
		return err
	}
	return d.openSealer()
}

func (d *Datapath) openAssociations(pinDir string) (err error) {
	d.Associations, err = esp.Open(esp.Host{
		Maps: d.maps, PinDir: pinDir, Pieces: d.mode.Active == ModeXDP && d.needsFrags(),
		Expedite: d.expedite.begin, Log: d.log,
	}, d.opts.Encrypt)
	return err
}

// detachVMFork takes the trace of VM forks out of the kernel, as of a run that was killed while pinning.
func detachVMFork(dir string) error {
	pin := filepath.Join(dir, esp.ForkPin)
	return errors.Join(hook.Detach(pin), hook.Detach(pin+"-new"))
}

// segmentLinks are the indexes of weft_host and weft_net, if packets are sealed.
type segmentLinks struct{ host, net uint32 }

// errNoFamily says that a tunnel to a node has no two ends.
var errNoFamily = errors.New("no address of the same family as one of this node's: nothing can be sealed for it")

// syncPeer enters the ends of the tunnel to a peer, and whose its addresses are.
func (d *Datapath) syncPeer(n Node, slot uint32, wireMTU int) (changed bool, err error) {
	local, remote, ok := d.outerAddrs(n)
	if !ok {
		return false, errNoFamily
	}
	if changed, err = d.SetTunnel(slot, local, remote, wireMTU); err != nil {
		return false, err
	}
	for _, a := range n.Addresses {
		key := bpf.ToAddr(a)
		if err := d.maps.PeerAddr.Put(&key, slot); err != nil {
			return false, fmt.Errorf("enter address %s of node %s: %w", a, n.Name, err)
		}
	}
	return changed, nil
}

// clearPeers forgets peers that are gone, with their keys and identities, also those of a previous run: the next owner of
// the index must not inherit them.
func (d *Datapath) clearPeers(current map[uint32]bool) error {
	wanted := map[bpf.Addr]bool{}
	for _, n := range d.nodes.list {
		for _, a := range n.Addresses {
			wanted[bpf.ToAddr(a)] = !n.Missing || wanted[bpf.ToAddr(a)]
		}
	}
	err := bpf.DeleteWhere(d.maps.PeerAddr, func(a bpf.Addr, _ uint32) bool { return !wanted[a] })
	if d.nodes.settled {
		return err
	}
	held, heldErr := d.heldSlots()
	err = errors.Join(err, heldErr)
	for slot := range held {
		if !current[slot] {
			err = errors.Join(err, d.clearSlot(slot, true))
		}
	}
	return err
}

// SetPlain makes the given ranges, and no others, the ones that may travel in cleartext, as source or destination.
func (d *Datapath) SetPlain(prefixes []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := map[bpf.RouteKey]bool{}
	for _, p := range prefixes {
		want[bpf.RouteKeyOf(p)] = true
	}
	moved, err := bpf.SyncSet(d.maps.Plain, want)
	if err != nil {
		err = fmt.Errorf("plain ranges: %w", err)
	}
	if moved {
		err = errors.Join(err, d.changed())
	}
	return err
}

// Plain are the ranges that may travel in cleartext now, in order.
func (d *Datapath) Plain() ([]netip.Prefix, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []netip.Prefix
	var key bpf.RouteKey
	var value uint8
	entries := d.maps.Plain.Iterate()
	for entries.Next(&key, &value) {
		out = append(out, bpf.PrefixOf(key))
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read plain ranges: %w", err)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out, nil
}

// SetPeerIdentities says which identities' pods each node hosts: what it seals under another is refused.
func (d *Datapath) SetPeerIdentities(nodes map[string][]uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := map[bpf.PeerId]bool{}
	used := map[uint32]bool{}
	for name, ids := range nodes {
		slot, known := d.nodes.slots[name]
		if !known {
			continue
		}
		for _, id := range ids {
			want[bpf.PeerId{Node: slot, Identity: id}], used[id] = true, true
		}
	}
	handles, err := d.assignHandles(used)
	if err != nil {
		return err
	}
	// No decision in a flow depends on it: who sealed a packet is checked each time.
	if _, err := bpf.SyncMap(d.maps.PeerIDs, want, func(id bpf.PeerId) uint16 { return handles[id.Identity] }); err != nil {
		return fmt.Errorf("identities of peers: %w", err)
	}
	return nil
}
