package wirefuzz

import (
	"testing"

	"github.com/safchain/ethtool"

	"weft.dev/weft/internal/netns"
)

// gro sends honest sealed packets of one size one after another to nodes whose uplink was told to
// merge UDP that it does not know (rx-udp-gro-forwarding, which routers of tunnels switch on)
// before their agents started, and which has time to: each has to arrive. Over IPv6, ESP has a
// checksum and can be merged before Weft sees it.
func (r *referee) gro(t *testing.T) {
	t.Helper()
	r.patience(t, "2000000")
	defer r.patience(t, "0")
	for _, node := range []string{"a", "b"} {
		r.held[node] = nil
		r.hold(t, node, heldCount)
		g := &gen{r: r, at: node,
			macs: append(append([]byte(nil), r.macs[node]...), 2, 0, 0, 0, 0xbe, 0xef)}
		s := &shot{number: matrix, shape: "ESP that the uplink's GRO may merge", at: node}
		for i, h := range r.held[node] {
			h.used = true
			src, dst := g.outer([]int{4, 6}[i/4/8%2])
			s.parts = append(s.parts,
				&part{id: h.id, how: genuine, inner: h.inner, must: h.to,
					data:     wrapESP(g.macs, src, dst, r.portOf(node, h), h.esp),
					envelope: src.String()})
		}
		r.fire(t, s)
		r.settle(t, r.count(t))
		r.order = r.order[:0]
	}
}

// mergeUDP has the uplinks of both nodes merge UDP.
func (b *harness) mergeUDP(t *testing.T) {
	t.Helper()
	for _, n := range agents(b.lab) {
		err := netns.Do(n.NetNS, func() error {
			tool, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer tool.Close()
			return tool.Change("w0", map[string]bool{"rx-udp-gro-forwarding": true})
		})
		if err != nil {
			t.Fatalf("GRO of node %s: %v", n.Name, err)
		}
	}
}

// patience is for how many nanoseconds the uplinks of both nodes wait for more to merge.
func (b *harness) patience(t *testing.T, wait string) {
	t.Helper()
	for _, n := range agents(b.lab) {
		must(t, n.NetNS, "unshare", "-m", "sh", "-c",
			"mount -t sysfs none /sys && echo "+wait+" > /sys/class/net/w0/gro_flush_timeout")
	}
}
