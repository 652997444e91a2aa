package policy

import "testing"

// TestRememberedAsWide: a policy with two mistakes, of which one is not in what is remembered, is
// about no fewer pods after a restart.
func TestRememberedAsWide(t *testing.T) {
	for name, text := range map[string]string{
		"NetworkPolicy": header + "  podSelector: {matchLabels: {app: web}, matchLabel: {}}\n" +
			"  ingress: [{ports: [{port: 0}]}]\n",
		"AuthorizationPolicy": authorizationHeader + "  selector: {matchLabels: {app: web}, match: {}}\n" +
			"  action: DNEY\n",
		"ClusterNetworkPolicy": "apiVersion: policy.networking.k8s.io/v1beta1\n" +
			"kind: ClusterNetworkPolicy\nmetadata: {name: a}\nspec:\n  tier: Adm\n  priority: 1\n" +
			"  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: ops}, more: {}}}\n",
		"PeerAuthentication": "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n" +
			"metadata: {name: a, namespace: shop}\n" +
			"spec: {selector: {matchLabels: {app: web}, more: {}}, mtls: {mode: STRIKT}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			before := policiesOf(t, text)
			if p := before[0]; !p.Broken() || !p.subject.Empty() {
				t.Fatalf("%s is about %v: %v", p.Object(), p.subject, p.Problems)
			}
			after := recalled(t, before)[0]
			if !after.subject.Empty() || after.cluster != nil && !after.cluster.namespaces.Empty() {
				t.Errorf("%s came back about %v", after.Object(), after.subject)
			}
		})
	}
}

// TestRecallOfALaterKind: what a later build has remembered is no NetworkPolicy.
func TestRecallOfALaterKind(t *testing.T) {
	list, files, err := Recall([]byte(`[{"kind":"Later","namespace":"shop","name":"x","file":"f","spec":{}}]`))
	if err != nil || len(list) != 0 || len(files) != 1 {
		t.Errorf("%v in %v, %v", list, files, err)
	}
}
