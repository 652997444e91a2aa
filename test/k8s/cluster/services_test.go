package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netns"
)

// A Service of both families in front of the Deployment, and of every node.
const webService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports:
  - {name: echo-tcp, port: 7000, protocol: TCP, nodePort: 30070}
  - {name: echo-udp, port: 7000, protocol: UDP, nodePort: 30070}
  - {name: page, port: 8080, protocol: TCP}
`

// testServices: kube-proxy translates in the host's stack, to a pod of this node or another one.
func testServices(t *testing.T, c *Cluster, pods []*Pod) {
	c.Apply(webService)
	for _, n := range c.Nodes {
		c.StartProxy(n)
	}
	c.Apply(onePod("client", pods[0].Node.Name))
	client := c.AwaitPods("shop", "app=client", 1)[0]
	service, err := c.API.Dynamic.Resource(Core("services")).Namespace("shop").
		Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addresses, _, _ := unstructured.NestedStringSlice(service.Object, "spec", "clusterIPs")
	if len(addresses) != 2 {
		t.Fatalf("the Service has %v", addresses)
	}
	ask := func(what, netNS string, at netip.AddrPort) {
		for range 8 {
			for protocol, echo := range map[string]func(context.Context, string, netip.Addr,
				netip.AddrPort, int) (time.Duration, error){"TCP": traffic.EchoTCP,
				"UDP": traffic.EchoUDP} {
				c.Eventually(fmt.Sprintf("%s asks %s by %s", what, at, protocol),
					func(context.Context) error {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						defer cancel()
						_, err := echo(ctx, netNS, netip.Addr{}, at, 1000)
						return err
					})
			}
		}
	}
	for _, text := range addresses {
		at := netip.AddrPortFrom(netip.MustParseAddr(text), EchoPort)
		ask("a pod", client.NetNS, at)
		ask("a node", pods[0].Node.NetNS, at)
		meetsAll(c, client, at.Addr(), pods)
	}
	for _, addr := range pods[0].Node.Addresses {
		at := netip.AddrPortFrom(addr, 30070)
		ask("a pod", client.NetNS, at)
		ask("another node", pods[1].Node.NetNS, at)
		ask("a machine outside", "", at)
	}
	c.Delete(client)
}

// meetsAll waits until a pod has met all pods behind a Service.
func meetsAll(c *Cluster, client *Pod, service netip.Addr, pods []*Pod) {
	met := map[string]bool{}
	get := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, at string) (conn net.Conn, err error) {
			err = netns.Do(client.NetNS, func() error {
				conn, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, at)
				return err
			})
			return conn, err
		}}}
	c.Eventually("all pods behind the Service are met", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet,
			"http://"+netip.AddrPortFrom(service, PagePort).String(), nil)
		if err != nil {
			return err
		}
		answer, err := get.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		name, err := io.ReadAll(answer.Body)
		if err != nil {
			return err
		}
		met[strings.TrimSpace(string(name))] = true
		for _, p := range pods {
			if !met[p.Name] {
				return fmt.Errorf("met %v", met)
			}
		}
		return nil
	})
}
