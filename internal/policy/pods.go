package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/api/v1alpha1"
)

// PortsOf are the named ports of an object.
func PortsOf(ports []v1alpha1.NamedPort) []ContainerPort {
	var out []ContainerPort
	for _, p := range ports {
		out = append(out,
			ContainerPort{Name: p.Name, Protocol: protocols[corev1.Protocol(p.Protocol)],
				Number: p.Port})
	}
	return out
}

// addAddress adds an address of a pod, once.
func (p *Pod) addAddress(text string) error {
	if text == "" {
		return nil
	}
	a, err := netip.ParseAddr(text)
	if err == nil && !slices.Contains(p.Addresses, a) {
		p.Addresses = append(p.Addresses, a)
	}
	return err
}

// addPorts adds the ports of a container that have names. Of two with one name the first counts,
// as for a Service.
func (p *Pod) addPorts(ports []kubePort) {
	for _, one := range ports {
		protocol, known := protocols[corev1.Protocol(cmp.Or(one.Protocol,
			string(corev1.ProtocolTCP)))]
		same := func(had ContainerPort) bool { return had.Name == one.Name && had.Protocol == protocol }
		if one.Name != "" && known && !slices.ContainsFunc(p.Ports, same) {
			p.Ports = append(p.Ports,
				ContainerPort{Name: one.Name, Protocol: protocol, Number: one.ContainerPort})
		}
	}
}

// Add takes the objects of another file. Of two objects with one name, neither is told from the
// other: a policy counts with both, as each may be the one that is meant.
func (o *Objects) Add(other *Objects) []Problem {
	var out []Problem
	for _, p := range other.Policies {
		if slices.ContainsFunc(o.Policies,
			func(known *Policy) bool { return known.Object() == p.Object() }) {
			out = append(out,
				Problem{File: p.file, Line: p.line, Object: p.Object(),
					Msg: "is declared a second time: keep one"})
		}
		o.Policies = append(o.Policies, p)
	}
	for _, p := range other.Pods {
		if slices.ContainsFunc(o.Pods, func(known Pod) bool { return known.Key() == p.Key() }) {
			out = append(out,
				Problem{Object: "Pod " + p.Key(),
					Msg: "is declared a second time, the first one counts: keep one"})
			continue
		}
		o.Pods = append(o.Pods, p)
	}
	maps.Copy(o.Namespaces, other.Namespaces)
	o.Ranges = append(o.Ranges, other.Ranges...)
	return out
}
