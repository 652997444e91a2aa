package bench

import (
	"net/netip"
	"time"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/policy"
)

// entering keeps a datapath's sets what a compiler says, in the place of an agent.
type entering struct {
	dp       *datapath.Datapath
	compiler *policy.Compiler
	sets     map[uint32]entered
	compiled time.Time
}

// entered is a set and its number in the datapath.
type entered struct {
	set    *policy.Set
	number uint32
}

// enter compiles, enters identities, the sets that are others and classes, and removes what is
// replaced.
func (e *entering) enter(in policy.Input) error {
	result := e.compiler.Compile(in)
	e.compiled = time.Now()
	identities, classes := map[netip.Addr]uint32{}, map[netip.Prefix]uint32{}
	for _, ep := range in.Endpoints {
		if !ep.Local {
			identities[ep.Addresses[0]] = ep.Identity
		}
	}
	if err := e.dp.SetIdentities(identities); err != nil {
		return err
	}
	for _, c := range result.Classes {
		classes[c.Prefix] = c.Class
	}
	var replaced []uint32
	for number, set := range result.Sets {
		had, there := e.sets[number]
		if had.set == set {
			continue
		}
		now, err := e.dp.AddPolicySet(policyEntries(set))
		if err != nil {
			return err
		}
		e.sets[number] = entered{set, now}
		if there {
			replaced = append(replaced, had.number)
		}
	}
	if _, err := e.dp.RemovePolicySets(replaced...); err != nil {
		return err
	}
	return e.dp.SetClasses(classes)
}

func policyEntries(set *policy.Set) []datapath.PolicyEntry {
	out := make([]datapath.PolicyEntry, len(set.Entries))
	for i, e := range set.Entries {
		out[i] = datapath.PolicyEntry{Direction: datapath.PolicyIngress, Peer: e.Peer,
			Protocol: e.Protocol, Port: e.Port, PortBits: e.PortBits,
			Allow: e.Verdict == policy.Allow, Precedence: e.Precedence, Rule: e.Rule}
	}
	return out
}

// remove takes all sets away.
func (e *entering) remove() error {
	var all []uint32
	for _, set := range e.sets {
		all = append(all, set.number)
	}
	_, err := e.dp.RemovePolicySets(all...)
	return err
}

// policyView shows Policy's report. Ratios are against the same without policies.
var policyView = &report.View{
	Title: "Weft: policy benchmarks", Order: PolicyVariants(),
	References: []report.Reference{report.Always(VariantNoPolicy),
		report.Always(VariantKernel)},
	Colours: map[string]string{VariantKernel: "#666666", variantIPTables10: "#f0c6a5",
		variantIPTables1000: "#e07b39", variantIPTables10000: "#8a3d0b",
		variantNFTables10: "#e6b3d3", variantNFTables10000: "#a8497f",
		VariantNoPolicy: "#9a9a9a", VariantRules10: "#9fd9c7",
		VariantRules1000: "#009e73", VariantRules10000: "#00533d", VariantPolicyAgent: "#0072b2"},
	Legends: map[string]string{VariantKernel: "kernel, no rules",
		variantIPTables10: "iptables, 10", variantIPTables1000: "iptables, 1000",
		variantIPTables10000: "iptables, 10 000", variantNFTables10: "nftables, 10",
		variantNFTables10000: "nftables, 10 000",
		VariantNoPolicy:      "no policy", VariantRules10: "10 rules",
		VariantRules1000: "1000 rules", VariantRules10000: "10 000 rules",
		VariantPolicyAgent: "the compiler"},
	Panels: []report.Panel{
		{Title: "64 B", Unit: "ns/packet without the generator", Scale: 1, Bars: []report.Bar{
			bar("known flow", "known64", "net_ns_per_packet"),
			bar("new flow", "new64", "net_ns_per_packet")}},
		{Title: "Compile 1000 policies from nothing, by pods", Unit: "ms", Scale: 1,
			Bars: []report.Bar{bar("1000", "compile-1000", "compile_ms"),
				bar("10 000", "compile-10000", "compile_ms")}},
		{Title: "One pod's labels change, to the kernel's maps", Unit: "ms", Scale: 1,
			Bars: []report.Bar{bar("1000", "change-1000", "enter_ms"),
				bar("10 000", "change-10000", "enter_ms")}},
	},
}
