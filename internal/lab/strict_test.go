package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/statefile"
)

// sealing asks a node's agent how many packets to its only peer went sealed.
func sealing(t *testing.T, l *Lab, node string) *admin.Encryption {
	t.Helper()
	got, err := admin.NewClient(l.Node(node).Socket).Encrypt(t.Context())
	if err != nil || len(got.Peers) != 1 {
		t.Fatalf("node %s: %+v %v", node, got, err)
	}
	return got
}

// awaitPlain waits until every node has that many plain addresses.
func awaitPlain(t *testing.T, l *Lab, want int) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if len(sealing(t, l, "a").Plain) == want && len(sealing(t, l, "b").Plain) == want {
			return
		}
	}
	t.Fatalf("there were never %d plain addresses", want)
}

func ping(t *testing.T, l *Lab, to string, size int) {
	t.Helper()
	for _, family := range []int{4, 6} {
		report, err := traffic.Ping(t.Context(), l.Pod("client").NetNS,
			traffic.PingOptions{Dst: l.Pod(to).Addr(family), Count: 3, Size: size, DF: true,
				Interval: 20 * time.Millisecond})
		if err != nil || !report.OK() {
			t.Errorf("IPv%d ping of %s, %d bytes: %+v %v", family, to, size, report, err)
		}
	}
}

// TestRealStrict: what goes between nodes is sealed, but for what a policy or a pod names.
func TestRealStrict(t *testing.T) {
	l := upRealAs(t, "strict", EncryptionStrict)
	first := sealing(t, l, "a")
	peer := first.Peers[0]
	if first.Epoch == nil || peer.SendEpoch != first.Epoch.Number ||
		peer.ReceiveEpoch != first.Epoch.Number || !peer.PostQuantum || peer.MTU != 1438 {
		t.Errorf("%+v %+v", first, peer)
	}
	reach(t, l.Pod("client"), l.Pod("server"), 4)
	reach(t, l.Pod("client"), l.Pod("server"), 6)
	ping(t, l, "server", 1438-48) // the largest that fits, with IPv6's header
	sealed := sealing(t, l, "a")
	if sealed.Sent.Packets == 0 || sealing(t, l, "b").Received.Packets == 0 {
		t.Errorf("nothing was sealed: %+v", sealed)
	}
	policy := "apiVersion: weft.dev/v1alpha1\nkind: EncryptionPolicy\nmetadata: {name: p, namespace: ops}\nspec: {selector: {}}\n"
	if err := statefile.WriteMode(filepath.Join(l.ObjectsDir(), "policy.yaml"), []byte(policy),
		0o644); err != nil {
		t.Fatal(err)
	}
	awaitPlain(t, l, 2)
	before := sealing(t, l, "a").Sent.Packets
	ping(t, l, "probe", 56)
	if after := sealing(t, l, "a").Sent.Packets; after != before {
		t.Errorf("%d packets were sealed although a policy says plain", after-before)
	}
	ping(t, l, "server", 56)
	if after := sealing(t, l, "a").Sent.Packets; after != before+6 {
		t.Errorf("%d packets of 6 were sealed", after-before)
	}
	pods := filepath.Join(l.ObjectsDir(), "pods.yaml")
	text, err := os.ReadFile(pods)
	if err != nil {
		t.Fatal(err)
	}
	sealedProbe := strings.Replace(string(text), "name: probe\n",
		"name: probe\n    annotations: {ebpf.xdp/encrypt: \"true\"}\n", 1)
	if err := statefile.WriteMode(pods, []byte(sealedProbe), 0o644); err != nil {
		t.Fatal(err)
	}
	awaitPlain(t, l, 0)
	before = sealing(t, l, "a").Sent.Packets
	ping(t, l, "probe", 56)
	if after := sealing(t, l, "a").Sent.Packets; after != before+6 {
		t.Errorf("%d packets of 6 were sealed although the pod asks for it", after-before)
	}
	for _, node := range []string{"a", "b"} {
		if got := sealing(t, l, node); len(got.Errors) > 0 || len(got.Problems) > 0 {
			t.Errorf("node %s: errors %+v, problems %v", node, got.Errors, got.Problems)
		}
	}
}
