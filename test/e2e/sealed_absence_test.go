package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/test/labtest"
)

// absenceLab has two nodes whose default route leads to a third machine: what has no other way
// leaves by it.
const absenceLab = `
name: set-later
agent:
  keys: {drain: 300ms}
` + labtest.ABOut + `pods:
  - {name: client, node: a, namespace: shop, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
`

// TestAbsenceNeverMeansCleartext breaks, doubles, empties and removes node b's object while pods
// talk, and restarts the agents in between: packets arrive sealed or are dropped with a reason of
// their own, and nothing of a pod is readable on the wire.
func TestAbsenceNeverMeansCleartext(t *testing.T) {
	l := newLab(t, "absence", parseSpec(t, absenceLab))
	a, b := l.Node("a"), l.Node("b")
	for _, n := range agents(l) {
		must(t, n.NetNS, "ip", "route", "replace", "default", "via", "192.0.2.9")
		must(t, n.NetNS, "ip", "-6", "route", "replace", "default", "via", "2001:db8::9")
		keyed(t, l, n)
	}
	watch := watchWire(t, l, podRules(l), nil)
	streams := streamsBothWays(t, l)
	file := filepath.Join(l.ObjectsDir(), "nodes.yaml")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects := splitObjects(t, good)
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	double := filepath.Join(l.ObjectsDir(), "b-again.yaml")
	other := strings.ReplaceAll(objects["b"], "10.77.2.0/24", "10.77.7.0/24")

	for _, mistake := range []struct{ name, path, text string }{
		{"a typo", file, strings.Replace(string(good), "10.77.2.0/24", "10.77.2.0/33", 1)},
		{"an empty file", file, ""},
		{"half a file", file, string(good[:strings.Index(string(good), "10.77.2.0/24")+5])},
		{"a second version", double, other},
	} {
		write(mistake.path, mistake.text)
		eventually(t, mistake.name+" to be named", func() error { return namesObjectErrors(t, a) })
		streams.flowing(t, "beside "+mistake.name)
		os.Remove(double)
		write(file, string(good))
		eventually(t, "all to be well", func() error {
			if namesObjectErrors(t, a) == nil {
				return fmt.Errorf("errors %v", status(t, a).Store.Errors)
			}
			return nil
		})
	}

	write(file, objects["a"])
	refusing(t, a, "10.77.2.0/24", "object missing")
	restart(t, a)
	refusing(t, a, "10.77.2.0/24", "object missing")
	write(file, string(good))
	streams.flowing(t, "when the object is back")

	write(double, other)
	restart(t, a)
	refusing(t, a, "10.77.2.0/24", "not used")
	if err := os.Remove(double); err != nil {
		t.Fatal(err)
	}
	streams.flowing(t, "when there is one version")

	write(file, objects["b"])
	restart(t, b) // which knows no peer now
	refusing(t, b, "10.77.1.0/24", "object missing")
	write(file, string(good))
	streams.flowing(t, "in the end")
	watch.allSealed(t, l)
}

// splitObjects are the objects of a file by name.
func splitObjects(t *testing.T, data []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, text := range strings.Split(string(data), "---\n") {
		var head struct {
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatal(err)
		}
		out[head.Metadata.Name] = text
	}
	return out
}

func namesObjectErrors(t *testing.T, n *lab.Node) error {
	if len(status(t, n).Store.Errors) == 0 {
		return fmt.Errorf("no object error")
	}
	return nil
}

func restart(t *testing.T, n *lab.Node) {
	t.Helper()
	if err := n.RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// refusing waits until a node lists a range as nobody's and drops packets for it under that name.
func refusing(t *testing.T, n *lab.Node, prefix, why string) {
	t.Helper()
	eventually(t, prefix+" to be nobody's at "+n.Name, func() error {
		s := status(t, n)
		for _, e := range s.NoNode {
			if e.Prefix == netip.MustParsePrefix(prefix) && strings.Contains(e.Why, why) &&
				s.Ready {
				return nil
			}
		}
		return fmt.Errorf("ready %v, no node %v, problems %v", s.Ready, s.NoNode, s.Problems)
	})
	before := dropped(t, n, "", "no_node")
	eventually(t, "packets to be dropped at "+n.Name, func() error {
		if now := dropped(t, n, "", "no_node"); now < before+100 {
			return fmt.Errorf("%d no_node drops, then %d; all: %s", before, now, dropText(t, n))
		}
		return nil
	})
}

// streamsBothWays sends UDP between the lab's two pods in both directions and families.
func streamsBothWays(t *testing.T, l *lab.Lab) *load {
	t.Helper()
	out := &load{udp: map[string]*traffic.UDPStream{}}
	for _, p := range crossPairs(l) {
		for _, family := range []int{4, 6} {
			udp, err := traffic.StartUDP(t.Context(),
				traffic.UDPOptions{From: p.from.NetNS, To: p.to.NetNS,
					Dst: netip.AddrPortFrom(p.to.Addr(family), 0), PPS: 300})
			if err != nil {
				t.Fatal(err)
			}
			out.udp[fmt.Sprintf("%s to %s IPv%d", p.from.Name, p.to.Name, family)] = udp
		}
	}
	t.Cleanup(out.stop)
	out.flowing(t, "at first")
	return out
}

// TestForgottenNode: what was forgotten is the world again, and no sooner.
func TestForgottenNode(t *testing.T) {
	l := newLab(t, "forget", parseSpec(t, absenceLab))
	a := l.Node("a")
	client := admin.NewClient(a.Socket)
	if _, err := client.ForgetNode(t.Context(), "b"); err == nil ||
		!strings.Contains(err.Error(), "in use") {
		t.Errorf("a node in use was forgotten: %v", err)
	}
	file := filepath.Join(l.ObjectsDir(), "nodes.yaml")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(splitObjects(t, good)["a"]), 0o644); err != nil {
		t.Fatal(err)
	}
	routes := func() string { return must(t, a.NetNS, "ip", "route", "show", "proto", "77") }
	eventually(t, "b to be missing", func() error {
		if len(status(t, a).NoNode) == 0 ||
			!strings.Contains(routes(), "unreachable 10.77.2.0/24") ||
			strings.Contains(routes(), "10.77.2.0/24 via") {
			return fmt.Errorf("%v, routes %s", status(t, a).NoNode, routes())
		}
		return nil
	})
	gone, err := client.ForgetNode(t.Context(), "b")
	if err != nil || len(gone) != 4 {
		t.Errorf("forgotten %v, %v", gone, err)
	}
	eventually(t, "b to be forgotten", func() error {
		s := status(t, a)
		for _, e := range s.NoNode {
			if e.Kind != "endpoint" { // what b has published still names its pod
				return fmt.Errorf("%v", s.NoNode)
			}
		}
		if strings.Contains(routes(), "10.77.2.0/24") {
			return fmt.Errorf("routes %s", routes())
		}
		return nil
	})
}
