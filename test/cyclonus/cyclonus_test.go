// Package cyclonus compares what internal/policy compiles with cyclonus, another implementation of
// what NetworkPolicy means. It is a module of its own, for what cyclonus needs.
package cyclonus

import (
	"fmt"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// TestCyclonus walks through all cases that cyclonus generates, and after each of their steps asks
// both for every pair of pods and machines outside, and every port. Both directions are compared
// apart, so that one which is wrongly open does not hide behind the other.
func TestCyclonus(t *testing.T) {
	zc := newWorld().pod("z", "c").address.String()
	compared, allowed, steps := 0, 0, 0
	cases := 0
	for _, dns := range []bool{true, false} {
		gen := generator.NewTestCaseGenerator(dns, zc, []string{"x", "y", "z"}, nil, nil)
		for i, one := range gen.GenerateAllTestCases() {
			cases++
			w := newWorld()
			for n, step := range one.Steps {
				steps++
				for _, action := range step.Actions {
					w.apply(t, action)
				}
				c := comparison{name: fmt.Sprintf("case %d (%s), step %d, DNS %v", i,
					one.Description, n, dns)}
				c.run(t, w)
				compared, allowed = compared+c.compared, allowed+c.allowed
			}
		}
	}
	t.Logf("%d cases, %d steps, %d verdicts compared, of which %d allow", cases, steps, compared,
		allowed)
	if cases < 400 || allowed == 0 || allowed == compared {
		t.Fatalf("that is too little to judge anything: %d cases, %d verdicts, %d allow", cases,
			compared, allowed)
	}
}

type comparison struct {
	name              string
	compared, allowed int
	failures          int
}

// probed are the ports that packets go to, besides those that pods serve: around them, for ranges,
// and DNS' own.
var probed = []uint16{1, 53, 79, 80, 81, 82, 83, 443, 65535}

func (c *comparison) run(t *testing.T, w *world) {
	t.Helper()
	table, identities := w.compile(t)
	theirs := matcher.BuildNetworkPolicies(false, w.policies)
	all := w.parties()
	for _, from := range all {
		for _, to := range all {
			for _, protocol := range []corev1.Protocol{"TCP", "UDP", "SCTP"} {
				for _, port := range probed {
					traffic := &matcher.Traffic{Source: w.theirs(from), Destination: w.theirs(to),
						ResolvedPort: int(port), Protocol: protocol}
					if to.pod != nil {
						traffic.ResolvedPortName = portName(port, protocol)
					}
					want := theirs.IsTrafficAllowed(traffic)
					for _, d := range []policy.Direction{policy.Egress, policy.Ingress} {
						mine, other, theirWord := from, to, want.Egress.IsAllowed()
						if d == policy.Ingress {
							mine, other, theirWord = to, from, want.Ingress.IsAllowed()
						}
						if mine.pod == nil {
							continue
						}
						got := table.Decide(mine.pod.key(), d, peerOf(other, identities),
							numbers[protocol], port)
						c.note(t, theirWord, got,
							fmt.Sprintf("%s: %s → %s %d/%s, %v", c.name, from.name, to.name, port,
								protocol, d))
					}
				}
			}
		}
	}
}

func peerOf(p party, identities map[string]uint32) policy.Peer {
	if p.pod == nil {
		return policy.Peer{Identity: v1alpha1.IdentityWorld, Address: p.address}
	}
	return policy.Peer{Identity: identities[p.pod.key()], Address: p.address}
}

func (c *comparison) note(t *testing.T, want bool, got policy.Decision, what string) {
	t.Helper()
	c.compared++
	if want {
		c.allowed++
	}
	if want == (got.Verdict == policy.Allow) {
		return
	}
	if c.failures++; c.failures <= 5 {
		t.Errorf("%s: cyclonus says %v, the compiled policy %v (set %d, rule %d)", what, want,
			got.Verdict, got.Set, got.Rule)
	}
}
