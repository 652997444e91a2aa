package datapath

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

// tracked is a rule that has the kernel track connections.
const tracked = "table inet wt { chain track { type filter hook forward priority 0; ct state new accept; }; }"

// nft changes the rules inside the harness's namespace.
func (b *harness) nft(rules string) error {
	return b.inside(func() error {
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(rules)
		out, err := nft.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("nft: %w: %s", err, out)
		}
		return err
	})
}

// TestPolicyUntracked: what a policy refuses ends before connection tracking takes note of it,
// which would translate answers and call them such, also where an egress hook refuses it later.
// Without connection tracking it is that hook's alone.
func TestPolicyUntracked(t *testing.T) {
	for _, f := range policyFamilies {
		t.Run(f.name, func(t *testing.T) {
			b := newExitHarness(t)
			must(t,
				b.putUplink(b.index["wtx"])) // whose hooks are not there: what arrives has passed post_routing
			world := fromA(f.world).udp(1000, 53, 20)
			for _, c := range []struct {
				name    string
				tracked bool
				of      policies
				tag     int64
				in      packet
				reason  bpf.Reason
			}{
				{"not tracked", false, policies{aOut: nothing}, bpf.TagEndpoint | 1, world,
					bpf.ReasonNone},
				{"tracked", true, policies{aOut: nothing}, bpf.TagEndpoint | 1, world, denied},
				{"tracked, and allowed", true,
					policies{aOut: []PolicyEntry{allow(bpf.IdentityWorld, 0)}}, bpf.TagEndpoint | 1,
					world, bpf.ReasonNone},
				{"tracked, a reply", true, policies{aOut: nothing},
					bpf.TagEndpoint | bpf.TagReply | 1, world, bpf.ReasonNone},
				{"tracked, to a pod that lets nobody in", true, policies{bIn: nothing},
					bpf.TagEndpoint | 1, fromA(f.b).udp(1000, 53, 20), denied},
				{"tracked, to a pod that lets it in", true,
					policies{bIn: []PolicyEntry{allow(ofA, 0)}}, bpf.TagEndpoint | 1,
					fromA(f.b).udp(1000, 53, 20), bpf.ReasonNone},
			} {
				t.Run(c.name, func(t *testing.T) {
					if c.tracked {
						must(t, b.nft(tracked))
						defer func() { must(t, b.nft("delete table inet wt")) }()
					}
					c.of.enter(t, b.harness)
					e := exit{via: "wta", tag: c.tag, in: c.in, reason: c.reason}
					e.run(t, b)
					if c.reason == bpf.ReasonNone {
						return
					}
					e.run(t, b) // nothing has been noted: the second is as new as the first
				})
			}
			must(t, b.maps.Uplinks.Delete(uint32(b.index["wtx"])))
		})
	}
}
