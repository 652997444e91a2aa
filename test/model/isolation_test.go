package model

import (
	"fmt"
	"slices"
	"strings"
)

// isolatedPod may talk to nobody, and nobody to it but its own node, from before the first step to
// the end: whatever becomes of the policy's file, it is never taken away.
const (
	isolatedPod   = "isolated"
	isolationFile = "isolation.yaml"
	isolation     = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: vault}
spec:
  podSelector: {}
  policyTypes: [Ingress, Egress]
`
)

// mayHear says whether policies allow that a pod hears somebody, by a pod's key or a node's name.
func mayHear(who string, at *pod) bool {
	if at.Name == isolatedPod {
		return who == at.Node
	}
	return !strings.HasPrefix(who, isolatedPod+"/")
}

// isolate writes the policy, and waits until its pod's node enforces it.
func (w *world) isolate() error {
	if err := replaceFile(w.objects.path(isolationFile), []byte(isolation)); err != nil {
		return err
	}
	at := w.hosts[slices.IndexFunc(w.hosts,
		func(h *host) bool { return h.Name == w.pod(isolatedPod).Node })]
	return poll("the isolation of pod "+isolatedPod, func() error {
		all, err := client(at).Policies(w.t.Context())
		if err != nil {
			return err
		}
		for _, p := range all.Pods {
			if p.Pod == "vault/"+isolatedPod && len(p.Ingress) == 1 && len(p.Egress) == 1 {
				return nil
			}
		}
		return fmt.Errorf("pods are %+v", all.Pods)
	})
}

// breakIsolation makes a mistake in the policy's file, or declares it a second time as one that
// allows everything. None of it says that the policy is gone.
func (w *world) breakIsolation() (string, error) {
	versions := []string{
		strings.Replace(isolation, "podSelector:", "podSelektor:", 1),
		strings.Replace(isolation, "policyTypes:", "policyType:", 1),
		strings.Replace(isolation, "spec:", "spek:", 1),
		strings.Replace(isolation, "networking.k8s.io/v1", "networking.k8s.io/v2", 1),
		strings.Replace(isolation, "NetworkPolicy", "NetworkPolcy", 1),
		strings.Replace(isolation, "Ingress, Egress", "Ingres, Egres", 1),
		strings.Replace(isolation, "name: isolated", "name: Isolated_", 1),
		strings.Replace(isolation, "podSelector: {}", "podSelector: {matchLabels: {a: [b]}}", 1),
		isolation[:len(isolation)-3],
		"\x00\xff{{{: -",
	}
	if w.rand.IntN(4) == 0 {
		open := isolation + "  ingress: [{}]\n  egress: [{}]\n"
		return "declared a second time, as one that allows all",
			w.objects.spoil("isolation-again.yaml", []byte(open), false)
	}
	bad := versions[w.rand.IntN(len(versions))]
	return fmt.Sprintf("%q", bad), w.objects.spoil(isolationFile, []byte(bad), w.rand.IntN(2) == 0)
}
