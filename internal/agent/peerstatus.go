package agent

import (
	"cmp"
	"fmt"

	"weft.dev/weft/internal/keys"
)

// nodeProblems are why the datapath cannot reach nodes, by name.
func nodeProblems(dp Datapath) map[string]string {
	out := map[string]string{}
	for _, p := range dp.NodeProblems() {
		out[p.Node] = p.Text
	}
	return out
}

// peerProblems name every node that this one does not reach and, once this node is ready, every one
// that it shares no keys with: until then that is what it waits for.
func (b *backend) peerProblems(running *node, ready bool) []string {
	var out []string
	unreachable := nodeProblems(running.dp)
	for _, p := range running.dp.NodeProblems() {
		out = append(out,
			fmt.Sprintf("node %s cannot be reached, and nothing goes to its pods: %s", p.Node,
				p.Text))
	}
	if !b.cfg.Encryption.On() || !ready {
		return bounded(out)
	}
	status := map[string]keys.PeerStatus{}
	why := b.keysProblem()
	if ring := b.keys.Load(); ring != nil {
		why = ""
		for _, p := range ring.Status().Peers {
			status[p.Name] = p
		}
	}
	for _, peer := range peers(b.index.Load().snapshot.Nodes, b.cfg.Node) {
		p := status[peer.Name]
		if p.EpochTX != 0 && p.EpochRX != 0 || unreachable[peer.Name] != "" {
			continue
		}
		out = append(out,
			fmt.Sprintf("peer %s is not sealed with, so its packets are dropped: %s", peer.Name,
				cmp.Or(why, p.LastError, p.State, keys.StateNoKey)))
	}
	return bounded(out)
}
