package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"weft.dev/weft/api/v1alpha1"
)

// LabelFilter says which labels of pods are part of their identities.
type LabelFilter interface {
	Relevant(key string) bool
	Of(labels map[string]string) map[string]string
}

// Simulation is what policies would do to pods, all of which are taken to be local.
type Simulation struct {
	*View
	// Cleartext has what pods send come in cleartext, from another node; else it is sealed, or they
	// are on one node.
	Cleartext bool
	// hosts are the pods of host networks, by key.
	hosts map[string]Pod
}

// ClusterNames are what a cluster calls its own, for Istio's policies.
type ClusterNames struct {
	TrustDomain string
	// RootNamespace is the one whose policies of Istio's are about all namespaces.
	RootNamespace string
}

// Simulate compiles objects as agents would.
func Simulate(o *Objects, filter LabelFilter, cluster ClusterNames) *Simulation {
	hosts, numbers, called := map[string]Pod{}, map[string]uint32{}, map[uint32]string{}
	in := Input{Policies: o.Policies, Namespaces: o.Namespaces, Ranges: o.Ranges}
	for _, p := range o.Pods {
		if p.HostNetwork {
			hosts[p.Key()] = p
			continue
		}
		part := filter.Of(p.Labels)
		who := IdentityName(p.Namespace, p.ServiceAccount, part)
		if numbers[who] == 0 {
			numbers[who] = v1alpha1.MinIdentity + uint32(len(numbers))
			called[numbers[who]] = who
			in.Identities = append(in.Identities, Identity{
				Number: numbers[who], TrustDomain: cluster.TrustDomain, Namespace: p.Namespace,
				ServiceAccount: p.ServiceAccount, Labels: part,
			})
		}
		e := p.Endpoint
		e.Identity, e.Local = numbers[who], true
		in.Endpoints = append(in.Endpoints, e)
	}
	names := Names{
		Identity: func(number uint32) string { return called[number] },
		Pod:      func(key string) string { return key },
	}
	result := NewCompiler(Options{
		Relevant: filter.Relevant, RootNamespace: cluster.RootNamespace,
		TrustDomain: cluster.TrustDomain,
	}).Compile(in)
	return &Simulation{View: NewView(result, in, names), hosts: hosts}
}

// Pods are all pods, in the order of their keys.
func (s *Simulation) Pods() []PodPolicies {
	out := s.View.Pods()
	for key := range s.hosts {
		out = append(out, PodPolicies{Pod: key, HostNetwork: true})
	}
	slices.SortFunc(out, func(a, b PodPolicies) int { return cmp.Compare(a.Pod, b.Pod) })
	return out
}

// Ask says what policy says of a packet between two ends, each a pod's key or an address of
// somebody outside the cluster. The port is a number or the name of a port of to, "" for protocols
// that have none.
func (s *Simulation) Ask(from, to string, protocol uint8, port string) (Answer, error) {
	sender, errFrom := s.end(from, netip.Addr{})
	receiver, errTo := s.end(to, sender.Address)
	if errFrom != nil || errTo != nil {
		return Answer{}, cmp.Or(errFrom, errTo)
	}
	// Of several addresses of a pod the one counts that the other end can talk to.
	sender, _ = s.end(from, receiver.Address)
	sender.Authenticated = sender.Authenticated && !s.Cleartext
	number, err := PortOf(to, receiver.Ports, protocol, port)
	if err != nil {
		return Answer{}, err
	}
	return s.Explain(sender.End, receiver.End, protocol, number), nil
}

// PortOf is the number of a port of a pod that is given by number or name, 0 for "".
func PortOf(pod string, own []ContainerPort, protocol uint8, text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return uint16(n), nil
	}
	e := Endpoint{Ports: own}
	if numbers := e.numbers(port{protocol: protocol, name: text}); len(numbers) > 0 {
		return numbers[0], nil
	}
	return 0, fmt.Errorf("%s has no port %q of that protocol: give a number from 0 to 65535, or a name that the pod declares", pod, text)
}

// simulated is an end with the ports that have names there.
type simulated struct {
	End
	Ports []ContainerPort
}

// end is who a name stands for. A pod answers with the address of the other's family, if it has
// one.
func (s *Simulation) end(name string, other netip.Addr) (simulated, error) {
	if a, err := netip.ParseAddr(name); err == nil {
		at := slices.IndexFunc(s.input.Endpoints,
			func(e Endpoint) bool { return slices.Contains(e.Addresses, a) })
		if at >= 0 {
			return simulated{}, fmt.Errorf("%s is the address of pod %s: name the pod", a,
				s.input.Endpoints[at].Key())
		}
		who := uint32(v1alpha1.IdentityWorld)
		if slices.ContainsFunc(s.input.Ranges,
			func(p netip.Prefix) bool { return p.Contains(a) }) {
			who = v1alpha1.IdentityUnknown // a pod's address, and nobody says whose
		}
		return simulated{End: End{Peer: Peer{Identity: who, Address: a}}}, nil
	}
	if host, ok := s.hosts[name]; ok {
		// Which node runs the pods is not known here, and a remote one has no more rights than
		// this.
		return simulated{End{Peer: Peer{Identity: v1alpha1.IdentityRemoteHost,
			Address: fitting(host.Addresses, other), Authenticated: true}}, host.Ports}, nil
	}
	at := slices.IndexFunc(s.input.Endpoints, func(e Endpoint) bool { return e.Key() == name })
	if at < 0 {
		return simulated{}, fmt.Errorf("no file has a pod %s: give NAMESPACE/NAME of a pod in the files, "+
			"or an address outside the cluster", name)
	}
	e := s.input.Endpoints[at]
	return simulated{End{Peer{e.Identity, fitting(e.Addresses, other), true}, name}, e.Ports}, nil
}

// fitting is the first address of the other's family, or of any if the other has none.
func fitting(own []netip.Addr, other netip.Addr) netip.Addr {
	for _, a := range own {
		if !other.IsValid() || a.Is4() == other.Is4() {
			return a
		}
	}
	return netip.Addr{}
}
