package policy

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/api/v1alpha1"
)

// PortsOf are the named ports of an object.
func PortsOf(ports []v1alpha1.NamedPort) []ContainerPort {
	var out []ContainerPort
	for _, p := range ports {
		out = append(out, ContainerPort{Name: p.Name, Protocol: protocols[corev1.Protocol(p.Protocol)], Number: p.Port})
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
		protocol, known := protocols[corev1.Protocol(cmp.Or(one.Protocol, string(corev1.ProtocolTCP)))]
		twice := slices.ContainsFunc(p.Ports, func(had ContainerPort) bool { return had.Name == one.Name && had.Protocol == protocol })
		if one.Name != "" && known && !twice {
			p.Ports = append(p.Ports, ContainerPort{Name: one.Name, Protocol: protocol, Number: one.ContainerPort})
		}
	}
}
