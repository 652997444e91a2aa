package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/policy"
)

// The variants of Policy: how many rules the sending pod's egress set has, each for another
// identity; and the compiler, which sends nothing.
const (
	VariantNoPolicy    = "no-policy"
	VariantRules10     = "rules-10"
	VariantRules1000   = "rules-1000"
	VariantRules10000  = "rules-10000"
	VariantPolicyAgent = "compiler"
)

// policyRules is how many entries a variant's set has.
var policyRules = map[string]int{VariantRules10: 10, VariantRules1000: 1000,
	VariantRules10000: 10_000}

// PolicyVariants lists every variant of Policy in the order in which they are run and shown.
func PolicyVariants() []string {
	return []string{VariantKernel, variantIPTables10, variantIPTables1000, variantIPTables10000,
		variantNFTables10, variantNFTables10000, VariantNoPolicy, VariantRules10,
		VariantRules1000, VariantRules10000, VariantPolicyAgent}
}

// PolicyTests lists every test of Policy by name.
func PolicyTests() []string { return policySuite().testNames(false) }

// PolicyGroups lists the names that stand for several tests of Policy.
func PolicyGroups() []string { return policySuite().groups() }

// Policy measures what policies cost: a packet of a known flow and of a new one by the number of
// rules, and compiling and entering them by the number of pods. It is to Route what its variants
// are to Route's: see there.
func Policy(ctx context.Context, opts Options) (*report.Report, error) {
	return measure(ctx, policySuite(), opts)
}

// newFlows is more than the flow table holds: each frame is the first of its flow.
const newFlows = 2 * tunnelFlows

func policySuite() *suite {
	tests := []test{
		{name: "known64", group: "packet", shape: shapeSeal, gen: true, run: runJudged(1, true)},
		{name: "new64", group: "packet", shape: shapeSeal, gen: true, run: runJudged(newFlows, false)},
	}
	for _, pods := range []int{1000, 10_000} {
		tests = append(tests,
			test{name: fmt.Sprintf("compile-%d", pods), group: "compile", shape: shapeSeal,
				run: runCompile(pods)},
			test{name: fmt.Sprintf("change-%d", pods), group: "change", shape: shapeSeal,
				run: runChange(pods)})
	}
	return &suite{
		variants: PolicyVariants(), defaults: PolicyVariants, tests: tests, view: policyView,
		isWeft: func(v string) bool { return v != report.Generator && !isFilter(v) },
		suits: func(t test, variant string) bool {
			return t.gen == (variant != VariantPolicyAgent)
		},
		build: func(ctx context.Context, _, variant string, s shape) (*harness, error) {
			if isFilter(variant) {
				return newFilterHarness(ctx, variant)
			}
			return newPolicyHarness(variant, s)
		},
	}
}

// newPolicyHarness is the near half of a tunnel in cleartext whose pod has a variant's egress set.
func newPolicyHarness(variant string, s shape) (*harness, error) {
	b, t, err := newTunnel(variant, s, config.ModeTC, "")
	if err != nil || policyRules[variant] == 0 {
		return b, err
	}
	if err := t.nodes[0].police(b.sinkIP, policyRules[variant]); err != nil {
		_ = t.close()
		return nil, fmt.Errorf("build harness %s/%s: %w", variant, s, err)
	}
	return b, nil
}

// police gives the pod a set with so many rules, of which the last lets it send to an address.
func (n *tunnelNode) police(to netip.Addr, rules int) error {
	entries := make([]datapath.PolicyEntry, rules)
	for i := range entries {
		entries[i] = datapath.PolicyEntry{Direction: datapath.PolicyEgress,
			Peer: firstIdentity + 1 + uint32(i), Protocol: policy.UDP, Allow: true,
			Precedence: 1 << 24, Rule: 1}
	}
	return netns.Do(n.ns, func() error {
		set, err := n.dp.AddPolicySet(entries)
		if err != nil {
			return err
		}
		err = errors.Join(n.dp.SetIdentities(map[netip.Addr]uint32{to: entries[rules-1].Peer}),
			n.dp.SetClasses(nil)) // as an agent does: no policy names a range
		if err != nil {
			return err
		}
		return n.dp.SetEndpointPolicy(1, set, 0)
	})
}

const (
	// policyCount is how many policies are compiled, localPods for how many pods of the own node,
	// podsPerNode how many others have, and podsPerIdentity how many replicas each workload has.
	policyCount, localPods, podsPerNode, podsPerIdentity = 1000, 100, 10, 5
	policyNamespaces, policyApps                         = 20, 50
)

// policyWorld is a cluster of so many pods: each policy is about one app of its namespace, lets in
// one other app of it and one of all namespaces, and a range.
func policyWorld(pods int) (policy.Input, error) {
	in := policy.Input{Namespaces: map[string]map[string]string{}, Ranges: nodeRanges(pods)}
	var text strings.Builder
	for i := range policyCount {
		app := i / policyNamespaces
		fmt.Fprintf(&text, "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"+
			"metadata: {name: p%d, namespace: ns%d}\n"+
			"spec: {podSelector: {matchLabels: {app: a%d}}, ingress: [{from: ["+
			"{podSelector: {matchLabels: {app: a%d}}}, "+
			"{namespaceSelector: {}, podSelector: {matchLabels: {app: a%d}}}, "+
			"{ipBlock: {cidr: 172.16.%d.0/24}}], ports: [{port: 80}, {port: 443}]}]}\n",
			i, i%policyNamespaces, app%policyApps, (app+1)%policyApps, (app+2)%policyApps, i%200)
	}
	objects, problems := policy.Decode("bench", []byte(text.String()))
	if len(problems) > 0 {
		return in, fmt.Errorf("policies to compile: %w", problems[0])
	}
	in.Policies = objects.Policies
	on := make([]int, len(in.Ranges)) // pods of each node, the own one first
	for i := range pods {
		local, node := i%(pods/localPods) == 0, 0
		if !local {
			node = 1 + i%(len(in.Ranges)-1)
		}
		on[node]++
		who := i / podsPerIdentity
		labels := map[string]string{"app": fmt.Sprint("a", who/policyNamespaces%policyApps),
			"version": fmt.Sprint("v", who)}
		ns := fmt.Sprint("ns", who%policyNamespaces)
		number := v1alpha1.MinIdentity + uint32(who)
		if i%podsPerIdentity == 0 {
			in.Identities = append(in.Identities,
				policy.Identity{Number: number, Namespace: ns, Labels: labels})
		}
		in.Endpoints = append(in.Endpoints, policy.Endpoint{Namespace: ns,
			Name: fmt.Sprint("pod", i), Labels: labels, Identity: number,
			Local:     local,
			Addresses: []netip.Addr{hostOf(in.Ranges[node], on[node])}})
	}
	return in, nil
}

// nodeRanges are a range of addresses for each node of a cluster of so many pods.
func nodeRanges(pods int) (out []netip.Prefix) {
	all := netip.MustParsePrefix("10.64.0.0/10")
	for n := range pods / podsPerNode {
		out = append(out, netip.PrefixFrom(hostOf(all, n<<8), 24))
	}
	return out
}

// runCompile is what a start compiles. The sample is the median.
func runCompile(pods int) runFunc {
	return func(ctx context.Context, _ *harness, dur time.Duration) (report.Sample, error) {
		in, err := policyWorld(pods)
		if err != nil {
			return nil, err
		}
		var rounds []time.Duration
		for begun := time.Now(); time.Since(begun) < dur && ctx.Err() == nil || rounds == nil; {
			start := time.Now()
			policy.NewCompiler(policy.Options{}).Compile(in)
			rounds = append(rounds, time.Since(start))
		}
		return report.Sample{"compile_ms": milliseconds(middle(rounds))}, ctx.Err()
	}
}

// runChange gives one pod of another node other labels, and with them another identity, again and
// again: compiled, and entered into the kernel's maps as far as sets have changed. The sample is
// the median.
func runChange(pods int) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		in, err := policyWorld(pods)
		if err != nil {
			return nil, err
		}
		e := &entering{dp: b.dp, sets: map[uint32]entered{}, compiler: policy.NewCompiler(policy.Options{})}
		defer e.remove()
		if err := e.enter(in); err != nil {
			return nil, err
		}
		var compiled, all []time.Duration
		for i, begun := 0, time.Now(); time.Since(begun) < dur && ctx.Err() == nil || i < 3; i++ {
			in = moved(in, i)
			start := time.Now()
			if err := e.enter(in); err != nil {
				return nil, err
			}
			compiled, all = append(compiled, e.compiled.Sub(start)), append(all, time.Since(start))
		}
		return report.Sample{"compile_ms": milliseconds(middle(compiled)),
			"enter_ms": milliseconds(middle(all))}, ctx.Err()
	}
}

// moved gives the last pod an identity of its own with another app, which local pods' policies are
// about with any number of pods.
func moved(in policy.Input, turn int) policy.Input {
	in.Identities, in.Endpoints = slices.Clone(in.Identities), slices.Clone(in.Endpoints)
	pod := &in.Endpoints[len(in.Endpoints)-1]
	pod.Labels = map[string]string{"app": fmt.Sprint("a", 2+turn%8)}
	pod.Identity = v1alpha1.MinIdentity + 1<<16
	id := policy.Identity{Number: pod.Identity, Namespace: pod.Namespace, Labels: pod.Labels}
	at := slices.IndexFunc(in.Identities,
		func(i policy.Identity) bool { return i.Number == pod.Identity })
	if at < 0 {
		in.Identities = append(in.Identities, id)
	} else {
		in.Identities[at] = id
	}
	return in
}

func middle(list []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(list))[len(list)/2]
}
