package lab

import (
	"net/netip"

	"go.yaml.in/yaml/v3"
)

// Examples shown in messages about addresses.
const (
	exampleAddress = "192.0.2.1/24 or 2001:db8::1/64"
	exampleRange   = "10.77.1.0/24 or fd77:1::/64"
)

// spec reads a whole lab file.
func (d *decoder) spec(root *yaml.Node) *Spec {
	s := &Spec{}
	d.mapping(root, "", fields{
		"name":       func(n *yaml.Node, p string) { s.Name = d.text(n, p) },
		"encryption": func(n *yaml.Node, p string) { s.Encryption = d.text(n, p) },
		"sysctls":    func(n *yaml.Node, p string) { s.Sysctls = d.text(n, p) },
		"agent":      func(n *yaml.Node, p string) { s.Agent = d.raw(n, p) },
		"nodes": func(n *yaml.Node, p string) {
			d.list(n, p, func(n *yaml.Node, p string) { s.Nodes = append(s.Nodes, d.node(n, p)) })
		},
		"wires": func(n *yaml.Node, p string) {
			d.list(n, p, func(n *yaml.Node, p string) { s.Wires = append(s.Wires, d.wire(n, p)) })
		},
		"pods": func(n *yaml.Node, p string) {
			d.list(n, p, func(n *yaml.Node, p string) { s.Pods = append(s.Pods, d.pod(n, p)) })
		},
	})
	return s
}

func (d *decoder) node(n *yaml.Node, path string) NodeSpec {
	var s NodeSpec
	d.mapping(n, path, fields{
		"name":      func(n *yaml.Node, p string) { s.Name = d.text(n, p) },
		"addresses": func(n *yaml.Node, p string) { s.Addresses = d.prefixes(n, p, exampleAddress) },
		"podCIDRs":  func(n *yaml.Node, p string) { s.PodCIDRs = d.prefixes(n, p, exampleRange) },
		"agent":     func(n *yaml.Node, p string) { s.Agent = d.boolean(n, p) },
		"mode":      func(n *yaml.Node, p string) { s.Mode = d.text(n, p) },
		"config":    func(n *yaml.Node, p string) { s.Config = d.raw(n, p) },
	})
	return s
}

func (d *decoder) wire(n *yaml.Node, path string) WireSpec {
	var s WireSpec
	d.mapping(n, path, fields{
		"name": func(n *yaml.Node, p string) { s.Name = d.text(n, p) },
		"nodes": func(n *yaml.Node, p string) {
			d.list(n, p, func(n *yaml.Node, p string) { s.Nodes = append(s.Nodes, d.text(n, p)) })
		},
		"mtu":     func(n *yaml.Node, p string) { s.MTU = d.integer(n, p, MinMTU, MaxMTU) },
		"offload": func(n *yaml.Node, p string) { s.Offload = d.boolean(n, p) },
		"addresses": func(n *yaml.Node, p string) {
			s.Addresses = map[string][]netip.Prefix{}
			d.each(n, p, func(key string, n *yaml.Node, p string) { s.Addresses[key] = d.prefixes(n, p, exampleAddress) })
		},
	})
	return s
}

func (d *decoder) pod(n *yaml.Node, path string) PodSpec {
	var s PodSpec
	d.mapping(n, path, fields{
		"name":           func(n *yaml.Node, p string) { s.Name = d.text(n, p) },
		"node":           func(n *yaml.Node, p string) { s.Node = d.text(n, p) },
		"namespace":      func(n *yaml.Node, p string) { s.Namespace = d.text(n, p) },
		"serviceAccount": func(n *yaml.Node, p string) { s.ServiceAccount = d.text(n, p) },
		"labels":         func(n *yaml.Node, p string) { s.Labels = d.texts(n, p) },
		"addresses": func(n *yaml.Node, p string) {
			d.list(n, p, func(n *yaml.Node, p string) { s.Addresses = append(s.Addresses, d.addr(n, p)) })
		},
		"road": func(n *yaml.Node, p string) { s.Road = d.text(n, p) },
	})
	return s
}

func (d *decoder) prefixes(n *yaml.Node, path, example string) []netip.Prefix {
	var out []netip.Prefix
	d.list(n, path, func(n *yaml.Node, p string) { out = append(out, d.prefix(n, p, example)) })
	return out
}
