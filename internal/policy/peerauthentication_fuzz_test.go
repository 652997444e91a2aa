package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writtenPeerAuthentication is a PeerAuthentication as it is written.
type writtenPeerAuthentication struct {
	meta metav1.ObjectMeta
	spec *peerAuthenticationSpec
}

// FuzzPeerAuthentication draws clusters with PeerAuthentications of all scopes, alone and beside
// policies of other kinds, and compares what is compiled with evaluators of each, for packets of
// who is authenticated and who is not.
func FuzzPeerAuthentication(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, seed*11)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		g := &generator{rand.New(rand.NewPCG(a, b))}
		compiler, w := NewCompiler(istioOptions), g.cluster()
		if g.IntN(2) > 0 {
			w.policies = nil
		}
		var list writtenAll
		for i := range 1 + g.IntN(6) {
			list.peers = append(list.peers, g.peerAuthentication(fmt.Sprint("p", i)))
		}
		for i := range g.IntN(2) {
			list.authorizations = append(list.authorizations, g.authorization(fmt.Sprint("a", i)))
			list.clusters = append(list.clusters, g.clusterPolicy(fmt.Sprint("c", i)))
		}
		compareAll(t, compiler, w, list)
		list.peers[0] = g.peerAuthentication("p0")
		compareAll(t, compiler, w, list)
		list.peers = list.peers[1:]
		compareAll(t, compiler, w, list)
	})
}

func (g *generator) peerAuthentication(name string) writtenPeerAuthentication {
	mode := func() *mutualTLS {
		return one(g, nil, &mutualTLS{}, &mutualTLS{"UNSET"}, &mutualTLS{"STRICT"},
			&mutualTLS{"STRICT"}, &mutualTLS{"PERMISSIVE"}, &mutualTLS{"DISABLE"})
	}
	out := writtenPeerAuthentication{metav1.ObjectMeta{
		Namespace: one(g, "red", "blue", "green", "istio-system"), Name: name,
		CreationTimestamp: metav1.NewTime(time.Unix(int64(g.IntN(3)), 0)),
	}, &peerAuthenticationSpec{MTLS: mode()}}
	if g.IntN(2) == 0 {
		return out
	}
	out.spec.Selector = &workloadSelector{MatchLabels: map[string]string{one(g, "app", "tier"): one(g,
		"a", "b")}}
	if n := g.IntN(3); n > 0 {
		out.spec.PortLevelMTLS = map[string]*mutualTLS{}
		for range n {
			out.spec.PortLevelMTLS[one(g, "53", "80", "8080")] = mode()
		}
	}
	return out
}

// demanded says whether what begins towards a pod has to be authenticated, from what is written.
func demanded(list []writtenPeerAuthentication, subject *Endpoint, protocol uint8,
	port uint16) bool {
	scopes := [3]*writtenPeerAuthentication{}
	for i := range list {
		p := &list[i]
		root, selects := p.meta.Namespace == "istio-system", p.spec.Selector != nil
		scope := 2
		switch {
		case selects && (root || !labelled(&metav1.LabelSelector{
			MatchLabels: p.spec.Selector.MatchLabels}, subject.Labels)),
			!root && p.meta.Namespace != subject.Namespace:
			continue
		case selects:
			scope = 0
		case !root:
			scope = 1
		}
		if known := scopes[scope]; known == nil || olderThan(p.meta, known.meta) {
			scopes[scope] = p
		}
	}
	mode := func(m *mutualTLS) string {
		if m == nil || m.Mode == "UNSET" {
			return ""
		}
		return m.Mode
	}
	var asked []string
	if at := scopes[0]; at != nil && slices.Contains(withPorts, protocol) {
		asked = append(asked, mode(at.spec.PortLevelMTLS[strconv.Itoa(int(port))]))
	}
	for _, p := range scopes {
		if p != nil {
			asked = append(asked, mode(p.spec.MTLS))
		}
	}
	for _, m := range asked {
		if m != "" {
			return m == "STRICT"
		}
	}
	return false
}

func olderThan(a, b metav1.ObjectMeta) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}
