package e2e

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// hostRules translate a Service's address to node a itself, as that of a backend in the host's
// network, and what the node itself asks a Service for to a pod on it.
const hostRules = `
table inet e2ehost {
  chain prerouting {
    type nat hook prerouting priority dstnat;
    ip daddr 10.96.0.9 tcp dport 7007 dnat ip to 192.0.2.1:7099
    ip6 daddr fd96::9 tcp dport 7007 dnat ip6 to [2001:db8::1]:7099
  }
  chain output {
    type nat hook output priority -100;
    ip daddr 10.96.0.2 meta l4proto { tcp, udp } th dport 7007 dnat ip to 10.77.1.100
    ip6 daddr fd96::2 meta l4proto { tcp, udp } th dport 7007 dnat ip6 to fd77:1::100
  }
}
`

const clientToNode = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: to-node, namespace: shop}
spec:
  podSelector: {matchLabels: {role: client}}
  policyTypes: [Egress]
  egress:
    - to: [{ipBlock: {cidr: 192.0.2.1/32}}, {ipBlock: {cidr: "2001:db8::1/128"}}]
      ports: [{port: 7099}]
`

// ownNode: a pod's policy holds towards its own node by an address that the node translates to
// itself, and pods answer their node whose policies let them begin nothing.
func ownNode(t *testing.T, l *lab.Lab) {
	a := l.Node("a")
	must(t, a.NetNS, "nft", hostRules)
	t.Cleanup(func() { must(t, a.NetNS, "nft", "delete table inet e2ehost") })
	// What has no route is not translated.
	for i, vip := range []string{"10.96.0.2", "fd96::2"} {
		must(t, a.NetNS, "ip", "route", "add", vip, "via", l.Node("out").Addresses[i].String())
		t.Cleanup(func() { must(t, a.NetNS, "ip", "route", "del", vip) })
	}
	echo, err := traffic.StartEcho(a.NetNS, 7099)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	for _, to := range []string{"10.96.0.2:7007", "[fd96::2]:7007"} {
		if err := ask(t.Context(), l, "a", to); err != nil {
			t.Errorf("the node asks a pod of its own, %s: %v; drops: %s", to, err, dropText(t, a))
		}
	}
	services := []string{"10.96.0.9:7007", "[fd96::9]:7007"}
	for _, to := range services {
		before := dropped(t, a, "", "policy_denied")
		for dropped(t, a, "", "policy_denied") == before {
			if once(t, l, "client", to, time.Second) == nil {
				t.Fatalf("the client reached its own node by %s, which its policy does not allow", to)
			}
		}
	}
	putObject(t, l, "to-node.yaml", clientToNode)
	for _, to := range services {
		eventually(t, "the client at its own node, allowed, by "+to,
			func() error { return once(t, l, "client", to, callTime) })
	}
}

// once asks an echo server one time.
func once(t *testing.T, l *lab.Lab, from, to string, patience time.Duration) error {
	t.Helper()
	ns, err := l.NetNSOf(from)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = traffic.EchoTCP(ctx, ns, netip.Addr{}, netip.MustParseAddrPort(to), 100)
	return err
}
