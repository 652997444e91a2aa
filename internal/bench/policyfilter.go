package bench

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"weft.dev/weft/internal/bench/report"
)

// The variants of Policy without Weft: the kernel routes, with nothing to ask, and with so many
// rules in iptables (Debian's, over nf_tables), one after another, or in a set of nftables.
const (
	variantIPTables10    = "iptables-10"
	variantIPTables1000  = "iptables-1000"
	variantIPTables10000 = "iptables-10000"
	variantNFTables10    = "nftables-10"
	variantNFTables10000 = "nftables-10000"
)

// filterRules is how many rules a variant of the kernel's filters has.
var filterRules = map[string]int{variantIPTables10: 10, variantIPTables1000: 1000,
	variantIPTables10000: 10_000, variantNFTables10: 10, variantNFTables10000: 10_000}

func isFilter(variant string) bool { return variant == VariantKernel || filterRules[variant] > 0 }

// newFilterHarness is a node that routes, whose forwarded packets meet a variant's rules. remember
// of the harness says whether a flow that was let in once is let in without asking them again, as
// both filters are set up commonly, and as Weft does.
func newFilterHarness(ctx context.Context, variant string) (*harness, error) {
	b, err := newPlainHarness(ctx, variant, shapeForward)
	if err != nil || filterRules[variant] == 0 {
		return b, err
	}
	b.remember = func(ctx context.Context, known bool) error {
		if strings.HasPrefix(variant, "nftables") {
			return loadNFTables(ctx, b.wire[0].NS,
				nftablesPolicy(filterRules[variant], known, b.sinkIP))
		}
		return loadRules(ctx, b.wire[0].NS,
			iptablesPolicy(filterRules[variant], known, b.sinkIP))
	}
	return b, nil
}

// otherPeers are addresses that nothing is sent to.
func otherPeers(n int) (out []netip.Addr) {
	all := netip.MustParsePrefix("10.128.0.0/9")
	for i := range n {
		out = append(out, hostOf(all, 1+i))
	}
	return out
}

// iptablesPolicy lets UDP through to so many addresses, the last of which is the one that is asked
// for. Nothing answers here, so no flow is ever ESTABLISHED: what is known is CONFIRMED.
func iptablesPolicy(rules int, known bool, to netip.Addr) string {
	var b strings.Builder
	b.WriteString("*filter\n:INPUT ACCEPT\n:FORWARD DROP\n:OUTPUT ACCEPT\n")
	status := "EXPECTED" // which none is: connections are tracked in either case
	if known {
		status = "CONFIRMED"
	}
	fmt.Fprintf(&b, "-A FORWARD -m conntrack --ctstatus %s -j ACCEPT\n", status)
	for _, peer := range append(otherPeers(rules-1), to) {
		fmt.Fprintf(&b, "-A FORWARD -d %s/32 -p udp -j ACCEPT\n", peer)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// nftablesPolicy is the same as iptablesPolicy, with the addresses in a set.
func nftablesPolicy(rules int, known bool, to netip.Addr) string {
	status := "expected"
	if known {
		status = "confirmed"
	}
	var peers []string
	for _, peer := range append(otherPeers(rules-1), to) {
		peers = append(peers, peer.String()+" . udp")
	}
	return fmt.Sprintf(`table ip wt_bench
delete table ip wt_bench
table ip wt_bench {
	set peers { type ipv4_addr . inet_proto; elements = { %s }; }
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct status %s accept
		ip daddr . meta l4proto @peers accept
	}
}
`, strings.Join(peers, ", "), status)
}

// loadNFTables hands rules to nft inside a namespace.
func loadNFTables(ctx context.Context, ns, rules string) error {
	path, err := findTool("nft")
	if err != nil {
		return fmt.Errorf("variant nftables: %w; install the package nftables", err)
	}
	if err := feed(ctx, ns, rules, path, "-f", "-"); err != nil {
		return fmt.Errorf("load nftables rules: %w", err)
	}
	return nil
}

// runJudged measures frames of so many flows, each of which is judged anew or only once. The
// kernel's filters keep a connection for each flow in either case: of new flows they pay for asking
// the rules, and not for making the connection.
func runJudged(flows int, known bool) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		if b.remember != nil {
			if err := b.remember(ctx, known); err != nil {
				return nil, fmt.Errorf("rules of variant %s: %w", b.variant, err)
			}
		}
		return runPPS(64, flows)(ctx, b, dur)
	}
}
