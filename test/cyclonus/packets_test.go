package cyclonus

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/test/labtest"
)

// patience is how long policies may take to be in force, on a busy machine.
const patience = time.Minute

// TestPackets walks through the cases on two nodes that seal to each other, with real packets from
// every pod to every other: what arrives after each step is what cyclonus says is allowed.
func TestPackets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	c := newCluster(t)
	var round uint16
	cases, steps, packets, allowed := 0, 0, 0, 0
	for i, one := range generator.NewTestCaseGenerator(true, zc.String(), []string{"x", "y", "z"},
		nil, nil).GenerateAllTestCases() {
		w := newWorld()
		w.place()
		c.follow(t, w)
		for n, step := range one.Steps {
			for _, action := range step.Actions {
				w.apply(t, action)
			}
			c.follow(t, w)
			want := c.expected(w)
			what := fmt.Sprintf("case %d (%s), step %d", i, one.Description, n)
			labtest.Eventually(t, patience, what, func() error {
				leaked, missing := c.round(t, &round, want)
				return errors.Join(leaked, missing)
			})
			// Once a step is in force, nothing comes that it forbids. What it allows may be late on
			// a busy machine.
			labtest.Eventually(t, patience, what+", again", func() error {
				leaked, missing := c.round(t, &round, want)
				c.settled[round] = true
				if leaked != nil {
					t.Errorf("%s, again: %v", what, leaked)
				}
				return missing
			})
			steps++
			for _, ok := range want {
				packets++
				if ok {
					allowed++
				}
			}
		}
		cases++
	}
	report := c.stop()
	t.Logf("%d cases, %d steps, %d packets judged, of which %d allowed; %d sealed on the wire",
		cases, steps, packets, allowed, report.Sealed)
	if cases < 200 || allowed == 0 || allowed == packets || report.Sealed == 0 || !report.Clean() {
		t.Errorf("too little to judge anything, or readable on the wire: %+v", report)
	}
}

// expected is what cyclonus says of each probe.
func (c *cluster) expected(w *world) map[probe]bool {
	theirs := matcher.BuildNetworkPolicies(false, w.policies)
	want := map[probe]bool{}
	for _, from := range w.pods {
		for _, to := range w.pods {
			if from == to {
				continue
			}
			for _, protocol := range []corev1.Protocol{"TCP", "UDP", "SCTP"} {
				for _, port := range []uint16{79, 80, 81} {
					traffic := &matcher.Traffic{
						Source:           w.theirs(party{pod: from, address: from.address}),
						Destination:      w.theirs(party{pod: to, address: to.address}),
						ResolvedPort:     int(port),
						ResolvedPortName: portName(port, protocol),
						Protocol:         protocol,
					}
					want[probe{from.address, to.address, numbers[protocol], port}] =
						theirs.IsTrafficAllowed(traffic).IsAllowed()
				}
			}
		}
	}
	return want
}

// round sends all probes once, and says which have arrived that should not, and which have not that
// should.
func (c *cluster) round(t *testing.T, number *uint16, want map[probe]bool) (leaked, missing error) {
	t.Helper()
	*number = 20000 + (*number+1)%20000
	expected := 0
	for p, ok := range want {
		if ok {
			expected++
		}
		for _, s := range c.pods {
			if s.IPv4 != p.from {
				continue
			}
			if err := s.say(p, *number); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.wanted[*number] = want
	got := map[probe]bool{}
	sent := time.Now()
	for end := sent.Add(window); time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
		for _, s := range c.pods {
			s.heard(func(round uint16, p probe) { c.note(t, round, p, *number, got) })
		}
		if len(got) >= expected && expected > 0 {
			// What should not come has had as long as all others, and as long again.
			end = time.Now().Add(time.Since(sent))
			expected = 0
		}
	}
	return wrong(want, got, true), wrong(want, got, false)
}

// window is how long a round waits for its packets. What comes later counts in the next.
const window = 200 * time.Millisecond

// note takes a packet that has come in. One of a former round that this had forbidden is an error
// here: it came too late for its own.
func (c *cluster) note(t *testing.T, round uint16, p probe, now uint16, got map[probe]bool) {
	t.Helper()
	if round == now {
		got[p] = true
		return
	}
	if want, known := c.wanted[round]; known && c.settled[round] && !want[p] {
		t.Errorf("%s arrives late, and cyclonus forbids it", p)
	}
}

// wrong names the probes that have arrived, or have not, against what is wanted.
func wrong(want, got map[probe]bool, arrived bool) error {
	var all []string
	for p, ok := range want {
		if got[p] != ok && got[p] == arrived {
			all = append(all, p.String())
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	return fmt.Errorf("of %d packets %d arrive: %v, and cyclonus says otherwise:\n  %s", len(want),
		len(all), arrived, strings.Join(all[:min(len(all), 8)], "\n  "))
}
