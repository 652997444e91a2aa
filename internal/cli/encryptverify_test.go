package cli

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
)

const publishedEndpoints = `apiVersion: weft.dev/v1alpha1
kind: Endpoint
metadata: {name: client, namespace: shop}
spec: {nodeName: a, addresses: [10.77.1.10, "fd77:1::10"]}
---
apiVersion: weft.dev/v1alpha1
kind: Endpoint
metadata: {name: open, namespace: shop}
spec: {nodeName: b, addresses: [10.77.2.1]}
---
apiVersion: weft.dev/v1alpha1
kind: Endpoint
metadata: {name: server, namespace: shop}
spec: {nodeName: b, addresses: [10.77.2.100, "fd77:2::100"]}
`

// verifyCallOn is a call on node a, which has the pod client and a peer b; the pod open of b may be
// plain.
func verifyCallOn(t *testing.T) *verifyCall {
	t.Helper()
	objects := t.TempDir()
	if err := os.WriteFile(filepath.Join(objects, "endpoints.yaml"), []byte(publishedEndpoints),
		0o644); err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	return &verifyCall{
		status: &admin.Status{
			Node: "a", Uplinks: []string{"w0"}, Addresses: []netip.Addr{addr("192.0.2.1")},
			Store: admin.StoreStatus{Store: config.Store{Dir: objects}},
			Paths: admin.Paths{NetNS: "/node"},
			Links: []datapath.LinkStatus{
				{Hook: "from_pod", Kind: "xdp", ProgramID: 7},
				{Hook: "from_pod", Kind: "xdp", ProgramID: 7},
				{Hook: "from_wire", Kind: "xdp-generic", ProgramID: 8},
				{Hook: "to_wire", Kind: "tcx-egress", ProgramID: 9},
			},
		},
		encryption: &admin.Encryption{Port: 4501,
			Plain: []netip.Prefix{netip.MustParsePrefix("10.77.2.1/32")}},
		nodes: []admin.Node{
			{Name: "a", Self: true, Addresses: []netip.Addr{addr("192.0.2.1")},
				PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24"),
					netip.MustParsePrefix("fd77:1::/64")}},
			{Name: "b", Addresses: []netip.Addr{addr("192.0.2.2")},
				PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.2.0/24"),
					netip.MustParsePrefix("fd77:2::/64")}},
		},
		endpoints: []admin.Endpoint{{ID: "id-1", Namespace: "shop", Pod: "client", NetNS: "/client",
			IPv4: addr("10.77.1.10"), IPv6: addr("fd77:1::10")}},
	}
}

func TestVerifyPlan(t *testing.T) {
	for _, c := range []struct {
		name, from, to string
		ns             string
		dsts           string
		err            string
	}{
		{name: "any", ns: "/client", dsts: "10.77.2.100 fd77:2::100"},
		{name: "pods", from: "client", to: "shop/server", ns: "/client",
			dsts: "10.77.2.100 fd77:2::100"},
		{name: "by ID", from: "id-1", to: "server", ns: "/client", dsts: "10.77.2.100 fd77:2::100"},
		{name: "one address", to: "fd77:2::100", ns: "/client", dsts: "fd77:2::100"},
		{name: "a node's address", to: "192.0.2.2", ns: "/client", dsts: "192.0.2.2"},
		{name: "host, IPv4 only", from: "host", to: "server", ns: "/node", dsts: "10.77.2.100"},
		{name: "plain on request", to: "open", ns: "/client", dsts: "10.77.2.1"},
		{name: "no family in common", from: "host", to: "fd77:2::100", err: "no family"},
		{name: "on this node", to: "10.77.1.77", err: "on this node"},
		{name: "nowhere", to: "203.0.113.1", err: "no address of a known node"},
		{name: "unknown pod", to: "nobody", err: "no published pod"},
		{name: "unknown sender", from: "nobody", err: "no pod"},
	} {
		t.Run(c.name, func(t *testing.T) {
			call := verifyCallOn(t)
			call.from, call.to = c.from, c.to
			result := &verification{Interfaces: call.status.Uplinks}
			options, err := call.options(result)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var dsts []string
			for _, p := range options.Probes {
				dsts = append(dsts, p.Dst.String())
				if p.NetNS != c.ns {
					t.Errorf("sent from %s, not %s", p.NetNS, c.ns)
				}
			}
			if got := strings.Join(dsts, " "); got != c.dsts || result.Peer != "b" ||
				len(options.Peer) != 1 {
				t.Errorf("sent to %s, peer %s %v", got, result.Peer, options.Peer)
			}
			if options.Rules.Port != 4501 || len(options.Rules.Pods) != 4 ||
				len(options.Rules.Nodes) != 2 || len(options.Rules.Allowed) != 1 {
				t.Errorf("rules %+v", options.Rules)
			}
			want := []encryptcheck.XDPProgram{{ID: 7}, {ID: 8, Uplink: true}}
			if len(options.XDPPrograms) != 2 || options.XDPPrograms[0] != want[0] ||
				options.XDPPrograms[1] != want[1] {
				t.Errorf("programs %+v", options.XDPPrograms)
			}
		})
	}
}

// TestVerifyPlanWithoutPods sends from the host where no pod can.
func TestVerifyPlanWithoutPods(t *testing.T) {
	call := verifyCallOn(t)
	call.endpoints = nil
	result := &verification{}
	call.interfaces = []string{"eth1"}
	options, err := call.options(result)
	if err != nil || result.From != hostName || len(options.Probes) != 1 ||
		options.Probes[0].NetNS != "/node" || options.Interfaces[0] != "eth1" {
		t.Errorf("%+v %+v %v", result, options, err)
	}
	call.interfaces, call.status.Uplinks = nil, nil
	if _, err := call.options(&verification{}); err == nil ||
		!strings.Contains(err.Error(), "--interface") {
		t.Errorf("without uplinks: %v", err)
	}
}

func TestWriteVerification(t *testing.T) {
	v := &verification{Node: "a", From: "shop/client", To: "shop/server", Peer: "b",
		Interfaces: []string{"w0"}, Result: &encryptcheck.Result{
			Verdict: encryptcheck.Readable, Why: "the marker was readable in 2 packets on the wire",
			Sent: encryptcheck.Sent{UDP: 2, Refused: 1, Error: "no route"}, Unseen: "no tracing",
			Capture: encryptcheck.Report{Frames: 3, Markers: 2, Plain: 2,
				Finds: []encryptcheck.Find{{Interface: "w0", What: "marker",
					Src: netip.MustParseAddr("10.77.1.10"), Dst: netip.MustParseAddr("10.77.2.100"),
					Protocol: "udp", Length: 554}}},
		}}
	var out strings.Builder
	if err := writeVerification(&out, v, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 marked packets from shop/client to shop/server",
		"1 by the sender's own stack: no route", "3 frames on w0", "no tracing",
		"readable: the marker", "10.77.2.100", "554"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}
