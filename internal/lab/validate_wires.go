package lab

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/api/v1alpha1"
)

func (v *validator) wires() {
	if len(v.spec.Wires) == 0 && len(v.spec.Nodes) > 0 {
		v.fail("wires", "is empty: every node must be on a wire")
	}
	seen, onWire := map[string]bool{}, map[string]bool{}
	for i, w := range v.spec.Wires {
		f := fmt.Sprintf("wires[%d]", i)
		v.ifName(f+".name", w.Name)
		if seen[w.Name] {
			v.fail(f+".name", "%q names two wires: rename one", w.Name)
		}
		seen[w.Name] = true
		if w.MTU < MinMTU || w.MTU > MaxMTU {
			v.fail(f+".mtu", "is %d: use %d to %d", w.MTU, MinMTU, MaxMTU)
		}
		v.wireNodes(f, w, onWire)
		v.wireAddresses(f, w)
	}
	for i, n := range v.spec.Nodes {
		if n.Name != "" && !onWire[n.Name] && len(v.spec.Wires) > 0 {
			v.fail(fmt.Sprintf("nodes[%d]", i), "%q is on no wire: add it to a wire's nodes",
				n.Name)
		}
	}
	v.subnets()
}

// ifName checks a wire's name, which becomes an interface's name in each node.
func (v *validator) ifName(f, name string) {
	switch {
	case name == "":
		v.fail(f, "is missing: give the wire a name, like w0")
	case len(name) > maxIfName || !ifNameForm.MatchString(name) || strings.Trim(name, ".") == "":
		v.fail(f,
			"%q is not an interface name: use letters, digits, - _ and ., at most %d characters",
			name, maxIfName)
	case name == "lo" || strings.HasPrefix(name, "wef"):
		v.fail(f, "%q is taken: lo is the loopback, names with wef are Weft's own: use one like w0",
			name)
	case !nameForm.MatchString(strings.ToLower(name)):
		v.fail(f, "%q also names a namespace: use letters, digits and - (not at the ends)", name)
	}
}

func (v *validator) wireNodes(f string, w WireSpec, onWire map[string]bool) {
	if len(w.Nodes) == 0 {
		v.fail(f+".nodes", "is empty: name the nodes on the wire")
	}
	for j, n := range w.Nodes {
		nf := fmt.Sprintf("%s.nodes[%d]", f, j)
		if v.spec.node(n) == nil {
			v.fail(nf, "%q is no node of this lab: nodes are %s", n,
				strings.Join(v.spec.nodeNames(), ", "))
		}
		if slices.Contains(w.Nodes[:j], n) {
			v.fail(nf, "%q is on this wire twice: keep one", n)
		}
		onWire[n] = true
	}
}

func (v *validator) wireAddresses(f string, w WireSpec) {
	for _, n := range slices.Sorted(maps.Keys(w.Addresses)) {
		if !slices.Contains(w.Nodes, n) {
			v.fail(f+".addresses["+n+"]",
				"is not on this wire: add it to nodes or remove its addresses")
		}
		for j, p := range w.Addresses[n] {
			v.address(fmt.Sprintf("%s.addresses[%s][%d]", f, n, j), p)
		}
	}
}

// subnets holds the nodes of a wire to one subnet per family: peers must be neighbours.
func (v *validator) subnets() {
	for _, w := range v.spec.Wires {
		first := map[bool]netip.Prefix{}
		for i, n := range v.spec.Nodes {
			if main := v.spec.mainWire(n.Name); main == nil || main.Name != w.Name {
				continue
			}
			for j, p := range n.Addresses {
				net, known := first[p.Addr().Is4()]
				if !known {
					first[p.Addr().Is4()] = p.Masked()
				} else if p.IsValid() && net != p.Masked() {
					v.fail(fmt.Sprintf("nodes[%d].addresses[%d]", i, j),
						"%s is outside %s, the subnet of wire %s: use an address of it, with the same prefix length", p, net, w.Name)
				}
			}
		}
	}
}

func (v *validator) pods() {
	seen := map[string]bool{}
	for i, p := range v.spec.Pods {
		f := fmt.Sprintf("pods[%d]", i)
		if v.name(f+".name", p.Name, "pod") {
			if seen[p.Name] {
				v.fail(f+".name",
					"%q names two pods: names are unique in a lab, also across namespaces", p.Name)
			}
			if v.spec.node(p.Name) != nil {
				v.fail(f+".name", "%q is also a node's name: rename one", p.Name)
			}
		}
		seen[p.Name] = true
		v.name(f+".namespace", p.Namespace, "namespace")
		v.name(f+".serviceAccount", p.ServiceAccount, "service account")
		for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
			if strings.TrimSpace(key) == "" {
				v.fail(f+".labels", "has an empty key: name it")
			}
		}
		node := v.spec.node(p.Node)
		if node == nil {
			v.fail(f+".node", "%q is no node of this lab: nodes are %s", p.Node,
				strings.Join(v.spec.nodeNames(), ", "))
			continue
		}
		v.podAddresses(f, p, node)
		if p.PodDatapath != "" && p.PodDatapath != v1alpha1.DatapathXDP {
			v.fail(f+".datapath",
				"%q is no datapath to ask for: use %s, or leave it out for an ordinary interface",
				p.PodDatapath, v1alpha1.DatapathXDP)
		} else if p.PodDatapath != "" && node.Bare() {
			v.fail(f+".datapath", "is for pods of nodes with an agent: remove it")
		}
	}
}

func (v *validator) podAddresses(f string, p PodSpec, node *NodeSpec) {
	if len(node.PodCIDRs) == 0 {
		v.fail(f+".node", "%q has no podCIDRs: give it a range to have pods", p.Node)
	}
	families := map[bool]bool{}
	for j, a := range p.Addresses {
		af := fmt.Sprintf("%s.addresses[%d]", f, j)
		if families[a.Is4()] {
			v.fail(af, "is the pod's second address of its family: keep one")
		}
		families[a.Is4()] = true
		inside := slices.ContainsFunc(node.PodCIDRs,
			func(r netip.Prefix) bool { return r.Contains(a) })
		if !inside {
			v.fail(af, "%s is outside node %s's podCIDRs %v: use an address of them", a, node.Name,
				node.PodCIDRs)
		}
		v.take(af, a)
	}
}

// node finds a node's description, nil if there is none.
func (s *Spec) node(name string) *NodeSpec {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

func (s *Spec) nodeNames() []string {
	names := make([]string, len(s.Nodes))
	for i, n := range s.Nodes {
		names[i] = n.Name
	}
	return names
}

// mainWire is the first wire that lists the node: the one that carries its addresses.
func (s *Spec) mainWire(node string) *WireSpec {
	for i := range s.Wires {
		if slices.Contains(s.Wires[i].Nodes, node) {
			return &s.Wires[i]
		}
	}
	return nil
}

// uplinks are the names of all wires of a node.
func (s *Spec) uplinks(node string) []string {
	var names []string
	for _, w := range s.Wires {
		if slices.Contains(w.Nodes, node) {
			names = append(names, w.Name)
		}
	}
	return names
}
