package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/netns"
)

// fill is how much a tunnel's nodes hold. Only the first peer and the first identity are real.
type fill struct {
	peers      int // of each node
	identities int // of the real peer
}

// String describes it for the progress lines.
func (f fill) String() string {
	return fmt.Sprintf("%d peers, %d identities", f.peers,
		f.identities)
}

const (
	// firstIdentity is a tunnel's pods' own.
	firstIdentity = 256
	// simEpoch is the epoch of a tunnel's keys.
	simEpoch = 1
	// simShift is the size of a simulated peer's pod range, in bits.
	simShift = 6
)

// simNodes has the addresses of the simulated peers, simPods their pods': of equal size, so that a
// generator reaches all peers by steps.
var (
	simNodes = netip.MustParsePrefix("172.30.0.0/16")
	simPods  = netip.MustParsePrefix("10.200.0.0/16")
)

// fill brings the nodes to that many peers and identities. Peers are never taken away.
func (t *tunnel) fill(ctx context.Context, f fill) error {
	if f.peers < t.peers {
		return fmt.Errorf("%d peers are there already, %d were asked for", t.peers, f.peers)
	}
	for i, n := range t.nodes {
		if err := n.meet(ctx, 1-i, f.peers); err != nil {
			return err
		}
	}
	if t.engine == "" {
		t.peers = f.peers
		return nil
	}
	if t.peers == 0 {
		if err := t.agree(); err != nil {
			return err
		}
		t.peers = 1
	}
	for _, n := range t.nodes {
		if err := n.keys(ctx, t.peers, f.peers); err != nil {
			return err
		}
		if err := n.setIdentities(f.identities); err != nil {
			return err
		}
	}
	t.peers = f.peers
	return nil
}

// meet enters the real peer, which is the node of that index, and simulated ones up to a number.
func (n *tunnelNode) meet(ctx context.Context, real, count int) error {
	if len(n.peers) == 0 {
		n.peers = []datapath.Node{{
			Name:      []string{nearNode, farNode}[real],
			Addresses: []netip.Addr{plainNodes[real].Addr()},
			PodCIDRs:  []netip.Prefix{plainPods[real]},
		}}
	}
	for i := len(n.peers); i < count; i++ {
		n.peers = append(n.peers, datapath.Node{
			Name: fmt.Sprintf("sim-%d", i), Addresses: []netip.Addr{hostOf(simNodes, i)},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(hostOf(simPods, i<<simShift), 32-simShift)},
		})
	}
	return netns.Do(n.ns, func() error { return n.dp.SetNodes(ctx, n.peers) })
}

// agree gives both nodes keys for each direction between them. A half's far node has none.
func (t *tunnel) agree() error {
	for i, from := range t.nodes {
		keys, err := from.newKeys()
		if err != nil {
			return err
		}
		if err := from.install(keys, from.peers[0].Name, true); err != nil {
			return err
		}
		if len(t.nodes) < 2 {
			return nil
		}
		to := t.nodes[1-i]
		if err := to.install(keys, from.name, false); err != nil {
			return err
		}
	}
	return nil
}

// keys gives a node keys in both directions for its peers from one number up to another.
func (n *tunnelNode) keys(ctx context.Context, from, to int) error {
	for _, peer := range n.peers[from:to] {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, out := range []bool{true, false} {
			keys, err := n.newKeys()
			if err == nil {
				err = n.install(keys, peer.Name, out)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// newKeys are one for each of the node's lanes.
func (n *tunnelNode) newKeys() ([]esp.SA, error) {
	sas, err := n.dp.Associations()
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	return newKeys(sas.Lanes()), nil
}

// install enters the keys of a direction, and has the node seal with them.
func (n *tunnelNode) install(lanes []esp.SA, peer string, out bool) error {
	sas, err := n.dp.Associations()
	if err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	for _, sa := range lanes { // a copy: InstallSA zeroes what it gets
		sa.Node, sa.Out = peer, out
		if err := sas.InstallSA(&sa); err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
	}
	if !out {
		return nil
	}
	if err := sas.SealWith(peer, simEpoch); err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	return nil
}

// newKeys makes random keys for every lane of one direction.
func newKeys(lanes int) []esp.SA {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	id[0] |= 1
	list := make([]esp.SA, lanes)
	for lane := range list {
		sa := &list[lane]
		sa.Epoch, sa.Lane, sa.Number, sa.ID = simEpoch, uint8(lane), 1, binary.LittleEndian.Uint64(id[:])
		sa.Expires = time.Now().Add(24 * time.Hour)
		_, _ = rand.Read(sa.Key[:])
		_, _ = rand.Read(sa.Salt[:])
	}
	return list
}

// setIdentities says that the real peer hosts that many identities, and every simulated one its
// own.
func (n *tunnelNode) setIdentities(count int) error {
	hosted := map[string][]uint32{}
	for i := range count {
		hosted[n.peers[0].Name] = append(hosted[n.peers[0].Name], uint32(firstIdentity+i))
	}
	for i, peer := range n.peers[1:] {
		hosted[peer.Name] = []uint32{uint32(firstIdentity + i)}
	}
	if err := n.dp.SetPeerIdentities(hosted); err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	return nil
}

// runSpread sends to a pod of every simulated peer in turn, of n peers that there are.
func runSpread(length, n int) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		f := frameSpec{
			dst: hostOf(simPods, 1<<simShift+1), dsts: n - 1, dstStep: 1 << simShift,
			outer:  hostOf(simNodes, 1),
			length: length, flows: 1,
		}
		res, err := generateTo(ctx, b, f, dur)
		if err != nil {
			return nil, err
		}
		return res.sample(), nil
	}
}
