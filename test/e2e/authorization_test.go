package e2e

import (
	"strings"
	"testing"
)

const authorizationKind = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n"

const (
	// allowShop lets nobody reach shop but the identities of its own namespace.
	allowShop = authorizationKind + `metadata: {name: allow, namespace: shop}
spec:
  rules:
    - from: [{source: {principals: ["cluster.local/ns/shop/*"]}}]
      to: [{operation: {ports: ["7007"]}}]
`
	denyAddress = authorizationKind + `metadata: {name: deny, namespace: istio-system}
spec:
  action: DENY
  selector: {matchLabels: {app: db}}
  rules:
    - from: [{source: {ipBlocks: [10.77.1.80, "fd77:1::80"]}}]
`
	denyFront = authorizationKind + `metadata: {name: deny, namespace: shop}
spec:
  action: DENY
  selector: {matchLabels: {app: web}}
  rules:
    - from: [{source: {namespaces: [front], notIpBlocks: [10.77.2.0/24, "fd77:2::/64"]}}]
`
	aboutRequests = authorizationKind + `metadata: {name: requests, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  rules:
    - to: [{operation: {methods: [GET]}}]
`
)

// forAll keeps db to itself and web, but for what others of shop begin.
const forAll = `apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: db}
spec:
  tier: Admin
  priority: 10
  subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}}
  ingress:
    - {action: Pass, from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: shop}}}]}
    - {action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {}}]}
  egress:
    - {action: Accept, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}}]}
    - {action: Deny, to: [{networks: [10.77.0.0/16, "fd77::/16"]}]}
`

// TestAuthorizationPolicy enforces policies of other kinds than NetworkPolicy between pods of one
// node and of two, sealed and in cleartext.
func TestAuthorizationPolicy(t *testing.T) {
	for _, encryption := range []string{"strict", `"off"`} {
		t.Run("encryption "+strings.Trim(encryption, `"`), func(t *testing.T) {
			l := newLab(t, "auth"+encryption[1:3], parseSpec(t, policyNodes, encryption))
			if encryption == "strict" {
				for _, n := range agents(l) {
					keyed(t, l, n)
				}
			}
			serveEcho(t, l.Pods()...)
			policies := matrix{lab: l}
			for _, row := range []struct {
				name    string
				objects map[string]string
				refused []string
			}{
				{"none", nil, nil},
				{"principals", map[string]string{"allow": allowShop},
					[]string{"client web", "client db", "other web", "other db"}},
				{"another port",
					map[string]string{"allow": strings.Replace(allowShop, "7007", "7008", 1)},
					[]string{"client web", "client db", "other web", "other db", "web db",
						"db web"}},
				{"addresses, for all namespaces", map[string]string{"deny": denyAddress},
					[]string{"web db"}},
				{"identity and address", map[string]string{"deny": denyFront},
					[]string{"client web"}},
				{"about requests", map[string]string{"requests": aboutRequests},
					[]string{"client web", "other web", "db web"}},
				{"beside a NetworkPolicy",
					map[string]string{"allow": strings.Replace(allowShop, "ns/shop", "ns/front", 1),
						"network": frontNamespace + "---\n" + allowFront + "---\n" + denyShop},
					[]string{"client db", "other db", "web db", "db web"}},
				{"a ClusterNetworkPolicy", map[string]string{"cluster": forAll},
					[]string{"client db", "other db", "db client", "db other"}},
				{"with a mistake",
					map[string]string{"deny": strings.Replace(denyFront, "namespaces:",
						"namespace:", 1)}, []string{"client web", "other web", "db web"}},
				{"dry run",
					map[string]string{"allow": strings.Replace(allowShop, "name: allow,",
						`name: allow, annotations: {istio.io/dry-run: "true"},`, 1)}, nil},
			} {
				t.Run(row.name, func(t *testing.T) {
					for name, text := range row.objects {
						putObject(t, l, name+".yaml", text)
					}
					policies.holds(t, row.refused)
					policies.probed(t, "web")
				})
			}
		})
	}
}
