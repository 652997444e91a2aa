package lab

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"weft.dev/weft/internal/config/strictyaml"
)

// Lengths that the kernel or the agent bound.
const (
	maxInstance = 40 // an agent's instance name, LAB-NODE
	maxIfName   = 15
	maxName     = 63
)

var (
	nameForm   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	ifNameForm = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	// modes are the agent's; the agent's own configuration check is the last word.
	modes = []string{"auto", "xdp", "tc", "stack"}
	// labOwned are configuration keys that the lab sets and lives by.
	labOwned = []string{"node", "instance", "store", "paths"}
	// reservedNodes would share a directory with something else of the lab.
	reservedNodes = []string{"objects", "bin", "ca"}
)

// Validate checks a Spec that was made by a program. Parse and Up call it.
func (s *Spec) Validate() error {
	c := s.clone()
	c.setDefaults()
	return validate(c, "", nil)
}

// setDefaults fills what a file may leave out.
func (s *Spec) setDefaults() {
	for i := range s.Wires {
		if s.Wires[i].MTU == 0 {
			s.Wires[i].MTU = DefaultMTU
		}
	}
	for i := range s.Pods {
		s.Pods[i].setDefaults()
	}
}

func (p *PodSpec) setDefaults() {
	if p.Namespace == "" {
		p.Namespace = DefaultNamespace
	}
	if p.ServiceAccount == "" {
		p.ServiceAccount = DefaultServiceAccount
	}
}

// validator collects every mistake of a Spec.
type validator struct {
	spec  *Spec
	file  string
	line  func(field string) int // nil for a Spec that was not read from a file
	errs  []strictyaml.Error
	addrs map[netip.Addr]string // address to the field that took it
}

func validate(s *Spec, file string, line func(field string) int) error {
	v := &validator{spec: s, file: file, line: line, addrs: map[netip.Addr]string{}}
	v.name("name", s.Name, "lab")
	if e := s.Encryption; e != "" && e != EncryptionStrict && e != EncryptionOff {
		v.fail("encryption", "%q is not known: use %s or %s", e, EncryptionStrict, EncryptionOff)
	}
	if c := s.Sysctls; c != "" && c != SysctlsDistribution && c != SysctlsKernel {
		v.fail("sysctls", "%q is not known: use %s or %s", c, SysctlsDistribution, SysctlsKernel)
	}
	v.agentConfig("agent", s.Agent)
	v.nodes()
	v.wires()
	v.pods()
	v.namespaces()
	return strictyaml.Join(v.errs)
}

func (v *validator) fail(field, format string, args ...any) {
	line := 0
	if v.line != nil {
		line = v.line(field)
	}
	v.errs = append(v.errs,
		strictyaml.Error{File: v.file, Line: line, Field: field, Msg: fmt.Sprintf(format, args...)})
}

func (v *validator) name(field, name, what string) bool {
	switch {
	case name == "":
		v.fail(field, "is missing: give the %s a name", what)
	case !nameForm.MatchString(name) || len(name) > maxName:
		v.fail(field,
			"%q is not a name: use a-z, 0-9 and - (not at the ends), at most %d characters", name,
			maxName)
	default:
		return true
	}
	return false
}

func (v *validator) nodes() {
	if len(v.spec.Nodes) == 0 {
		v.fail("nodes", "is empty: a lab needs at least one node")
	}
	seen := map[string]bool{}
	for i, n := range v.spec.Nodes {
		f := fmt.Sprintf("nodes[%d]", i)
		if v.name(f+".name", n.Name, "node") && seen[n.Name] {
			v.fail(f+".name", "%q names two nodes: rename one", n.Name)
		}
		if slices.Contains(reservedNodes, n.Name) {
			v.fail(f+".name", "%q is a directory of the lab itself: rename the node", n.Name)
		}
		seen[n.Name] = true
		if len(v.spec.Name)+1+len(n.Name) > maxInstance {
			v.fail(f+".name",
				"lab and node name together have %d characters, at most %d fit: shorten one",
				len(v.spec.Name)+len(n.Name), maxInstance-1)
		}
		v.nodeAddresses(f, n)
		v.podCIDRs(f, i, n)
		v.nodeConfig(f, n)
	}
}

func (v *validator) nodeAddresses(f string, n NodeSpec) {
	if len(n.Addresses) == 0 {
		v.fail(f+".addresses", "is empty: give the node an address with prefix length, like %s",
			exampleAddress)
	}
	families := map[bool]bool{}
	for j, p := range n.Addresses {
		af := fmt.Sprintf("%s.addresses[%d]", f, j)
		v.address(af, p)
		if families[p.Addr().Is4()] {
			v.fail(af,
				"is the node's second address of its family: keep one here, put others under wires[].addresses")
		}
		families[p.Addr().Is4()] = true
	}
}

// address checks an interface's address and that nobody else has it.
func (v *validator) address(f string, p netip.Prefix) {
	a := p.Addr()
	switch {
	case !p.IsValid():
		v.fail(f, "is not an address with prefix length: write it like %s", exampleAddress)
		return
	case !unicast(a):
		v.fail(f,
			"%s cannot be an interface's address: use a unicast address that is not link-local", a)
	case a.Is4() && p.Bits() < 31 && p.Masked().Addr() == a:
		v.fail(f, "%s is the network's own address: use one inside it", p)
	}
	v.take(f, a)
}

func (v *validator) take(f string, a netip.Addr) {
	if other, taken := v.addrs[a]; taken {
		v.fail(f, "%s is already given by %s: use another", a, other)
		return
	}
	v.addrs[a] = f
}

func unicast(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() &&
		!a.IsMulticast() && !a.IsLinkLocalUnicast()
}

func (v *validator) podCIDRs(f string, index int, n NodeSpec) {
	for j, p := range n.PodCIDRs {
		cf := fmt.Sprintf("%s.podCIDRs[%d]", f, j)
		switch {
		case !p.IsValid() || !unicast(p.Addr()):
			v.fail(cf, "is not a range of unicast addresses: write it like %s", exampleRange)
		case p.Masked() != p:
			v.fail(cf, "%s has bits set after its prefix length: write %s", p, p.Masked())
		}
		for i, other := range v.spec.Nodes {
			for k, q := range other.PodCIDRs {
				if (i < index || i == index && k < j) && p.Overlaps(q) {
					v.fail(cf,
						"%s overlaps nodes[%d].podCIDRs[%d] (%s): each range must live on one node",
						p, i, k, q)
				}
			}
			for k, q := range other.Addresses {
				if q.IsValid() && p.IsValid() && p.Overlaps(q.Masked()) {
					v.fail(cf,
						"%s overlaps the wire's subnet of nodes[%d].addresses[%d] (%s): choose another range", p, i, k, q)
				}
			}
		}
	}
}

func (v *validator) nodeConfig(f string, n NodeSpec) {
	if n.Mode != "" && !slices.Contains(modes, n.Mode) {
		v.fail(f+".mode", "%q is not a mode: use %s", n.Mode, strings.Join(modes, ", "))
	}
	if n.Bare() && n.Mode != "" {
		v.fail(f+".mode", "is for nodes with an agent: remove it or agent: false")
	}
	if n.Bare() && len(n.Config) > 0 {
		v.fail(f+".config", "is for nodes with an agent: remove it or agent: false")
	}
	if _, both := n.Config["mode"]; both && n.Mode != "" {
		v.fail(f+".config.mode", "is also given by %s.mode: keep one", f)
	}
	v.agentConfig(f+".config", n.Config)
}

func (v *validator) agentConfig(f string, config map[string]any) {
	for _, key := range labOwned {
		if _, given := config[key]; given {
			v.fail(f+"."+key, "is set by the lab: remove it")
		}
	}
}

// namespaces refuses a lab in which two things would have the same network namespace,
// such as node "a-b" and pod "b" of node "a".
func (v *validator) namespaces() {
	seen := map[string]string{}
	for _, ns := range namespaceNames(v.spec) {
		if other, taken := seen[ns.name]; taken {
			v.fail(ns.field, "would share the network namespace %s with %s: rename one", ns.name,
				other)
		}
		seen[ns.name] = ns.field
	}
}
