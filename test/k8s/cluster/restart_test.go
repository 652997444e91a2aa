package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/lab/traffic"
)

// streams runs traffic of both protocols and families, in both directions, until the returned
// function judges it.
func streams(t *testing.T, pods []*Pod) (judge func()) {
	t.Helper()
	var datagrams []*traffic.UDPStream
	var connections []*traffic.TCPStream
	bothWays(pods, func(from, to *Pod, family int, protocol string) {
		at := netip.AddrPortFrom(to.Addr(family), 0)
		if protocol == "UDP" {
			s, err := traffic.StartUDP(t.Context(), traffic.UDPOptions{From: from.NetNS,
				To: to.NetNS, Src: from.Addr(family), Dst: at, PPS: 100})
			if err != nil {
				t.Fatal(err)
			}
			datagrams = append(datagrams, s)
			return
		}
		s, err := traffic.StartTCP(t.Context(), traffic.TCPOptions{From: from.NetNS, To: to.NetNS,
			Src: from.Addr(family), Dst: at, BytesPerSecond: 100_000})
		if err != nil {
			t.Fatal(err)
		}
		connections = append(connections, s)
	})
	return func() {
		t.Helper()
		for _, s := range datagrams {
			r := s.Stop()
			t.Log("UDP:", r)
			if r.Sent == 0 || r.Lost > 0 || r.SendErrors > 0 || r.Corrupt > 0 {
				t.Error("datagrams were lost")
			}
		}
		for _, s := range connections {
			r := s.Stop()
			t.Log("TCP:", r)
			if r.Sent == 0 || r.Received != r.Sent || r.Resets > 0 || r.Corrupt {
				t.Error("bytes were lost")
			}
		}
	}
}

// away is how long the API server is: nothing is measured by it.
const away = 30 * time.Second

// testAway: without the API server packets go on; a pod that only the kubelet knows of waits, as
// nobody can say who it is, and is made once the server is back.
func testAway(t *testing.T, c *Cluster, pods []*Pod) {
	n := pods[0].Node
	judge := streams(t, pods)
	c.API.Kill()
	n.Write("/etc/kubernetes/manifests/late.yaml", strings.Replace(onePod("late", n.Name),
		"nodeSelector: {kubernetes.io/hostname: "+n.Name+"}", "hostNetwork: false", 1))
	back := time.Now().Add(away)
	c.Eventually("the kubelet asks for a network in vain", func(context.Context) error {
		if log := n.Log(Kubelet); !strings.Contains(log, "weft-cni") ||
			!strings.Contains(log, "late-"+n.Name) {
			return errors.New("not yet")
		}
		return nil
	})
	// An agent that starts meanwhile has what it remembers, and waits for the rest.
	other := pods[1].Node
	other.Stop(Agent, unix.SIGTERM)
	c.launchAgent(other)
	time.Sleep(time.Until(back))
	endpoints, err := n.Admin().Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range endpoints {
		if e.Pod == "late-"+n.Name {
			t.Errorf("a pod of whom nobody knows who it is was added: %+v", e)
		}
	}
	c.API.Start()
	c.AwaitAgent(other)
	late := c.AwaitPods("shop", "app=late", 1)[0]
	judge()
	testReach(t, c, []*Pod{late, pods[1]})
	if err := os.Remove(n.Path("/etc/kubernetes/manifests/late.yaml")); err != nil {
		t.Fatal(err)
	}
}

func testRestart(t *testing.T, c *Cluster, pods []*Pod) {
	judge := streams(t, pods)
	for _, n := range c.Nodes {
		for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
			n.Stop(Agent, signal)
			time.Sleep(2 * time.Second) // traffic without an agent
			c.StartAgent(n)
		}
	}
	judge()
	testReach(t, c, c.AwaitPods("shop", "app=web", 2))
}

// testRuntime: a kubelet and a containerd that were away, stopped or killed, find their pods again
// and make new ones.
func testRuntime(t *testing.T, c *Cluster, pods []*Pod) {
	judge := streams(t, pods)
	for i, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		for _, n := range c.Nodes {
			n.Stop(Kubelet, signal)
			n.Stop(Containerd, signal)
			c.startContainerd(n)
			c.startKubelet(n)
		}
		for k, n := range c.Nodes {
			name := fmt.Sprintf("after-%d-%d", i, k)
			c.Apply(onePod(name, n.Name))
			after := c.AwaitPods("shop", "app="+name, 1)[0]
			testReach(t, c, []*Pod{after, pods[0]})
			testReach(t, c, []*Pod{after, pods[1]})
			c.Delete(after)
		}
	}
	judge()
}
