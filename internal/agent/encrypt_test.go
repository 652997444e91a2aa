package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/auditlog"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/store"
	"weft.dev/weft/internal/store/dir"
)

// sealedWorld has two nodes, a key manager that has everything, and a pod on the other node.
func sealedWorld() *world {
	w := upWorld()
	w.snapshot.Endpoints["demo/db"].Status.Identity = 300
	w.snapshot.Endpoints["demo/db"].Spec.ServiceAccount = "db"
	w.snapshot.Identities["300"] = &v1alpha1.Identity{
		Metadata: v1alpha1.ObjectMeta{Name: "300"}, Spec: v1alpha1.IdentitySpec{SPIFFEID: "spiffe://weft.local/ns/demo/sa/db"},
	}
	w.sealing.ring = &fakeRing{status: keys.Status{
		Ready: true, Epoch: 7, Newest: 7,
		Epochs: []epochs.Status{{Epoch: epochs.Epoch{Number: 7, KEK: "file:///kek", Created: time.Unix(1, 0), Expires: time.Unix(2, 0)}}},
		Peers:  []keys.PeerStatus{{Name: "b", State: keys.StateUp, EpochTX: 7, EpochRX: 7, PostQuantum: true, Group: "X25519MLKEM768"}},
		Counters: keys.Counters{
			Handshakes: map[string]uint64{"ok": 3, "busy": 1, "unreachable": 2, "served_foreign": 1},
			Counters:   epochs.Counters{Rotations: map[string]uint64{"first": 1}},
			Turned:     handshake.Turned{Filtered: 9, Unknown: 2, Silent: 3, Evicted: 4},
		},
	}}
	w.sealing.sas = []esp.SAStatus{
		{Node: "b", Out: true, Number: 7, ID: 1, Packets: 5, Bytes: 500, Installed: time.Unix(9, 0)},
		{Node: "b", Out: true, Number: 7, ID: 1, Lane: 1, Packets: 2, Bytes: 20, Installed: time.Unix(8, 0)},
		{Node: "b", Number: 7, ID: 2, Packets: 1, Bytes: 10, Installed: time.Unix(9, 0)},
	}
	return w
}

func strictConfig(t *testing.T) *config.Config {
	cfg := testConfig(t)
	cfg.Encryption.Mode = config.EncryptionStrict
	return cfg
}

func waitsFor(t *testing.T, client *admin.Client, texts ...string) {
	t.Helper()
	eventually(t, strings.Join(texts, ", "), func() bool {
		state, err := client.Ready(context.Background())
		return err == nil && !state.Ready && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(state.Waiting, text) })
	})
}

func TestStrictWaitsForKeys(t *testing.T) {
	w := sealedWorld()
	w.sealing.ringErr = errors.New("open the key-encryption key: /etc/weft/kek is not there: `weft keys init` makes one")
	w.sealing.certificate = errors.New("no certificate: /etc/weft/node.crt is not there: `weft ca join` gets one")
	w.sealing.ring.status.Epoch, w.sealing.ring.status.Ready = 0, false
	w.sealing.ring.status.Leader = "b"
	w.sealing.ring.status.Peers[0].State = keys.StateNoKey
	client, _ := w.start(t, strictConfig(t))
	waitsFor(t, client, "/etc/weft/kek is not there: `weft keys init` makes one", `encryption.mode: "off"`)
	w.mu.Lock()
	w.sealing.ringErr = nil
	w.mu.Unlock()
	waitsFor(t, client, "the node's certificate", "`weft ca join` gets one", `encryption.mode: "off"`)
	w.mu.Lock()
	w.sealing.certificate = nil
	w.mu.Unlock()
	waitsFor(t, client, "an epoch that this node can read", "node b makes them")
	w.sealing.ring.set(func(s *keys.Status) {
		s.Epoch, s.Epochs = 0, []epochs.Status{{Epoch: epochs.Epoch{Number: 7}, Error: "access denied"}}
	})
	waitsFor(t, client, "epoch 7: access denied")
	w.sealing.ring.set(func(s *keys.Status) { s.Epoch, s.Ready = 7, true })
	waitsFor(t, client, "keys with b")
	w.sealing.ring.set(func(s *keys.Status) { s.Peers[0].State = keys.StateUp })
	eventually(t, "ready", func() bool { return ready(client) })
}

func TestStrictWithoutPeersNeedsNothing(t *testing.T) {
	w := sealedWorld()
	delete(w.snapshot.Nodes, "b")
	delete(w.snapshot.Endpoints, "demo/db")
	w.sealing.ringErr = errors.New("nothing is there")
	client, _ := w.start(t, strictConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	status, err := client.Status(context.Background())
	if err != nil || len(status.Problems) > 0 || status.Encryption != "strict, bpf engine, no peers" {
		t.Errorf("%+v %v", status, err)
	}
}

func TestPeerThatIsDownDoesNotHoldUp(t *testing.T) {
	w := sealedWorld()
	w.sealing.ring.status.Peers[0].State, w.sealing.ring.status.Peers[0].LastError = keys.StateFailed, "unreachable"
	w.sealing.ring.status.Peers[0].EpochTX = 0
	client, _ := w.start(t, strictConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	status, err := client.Status(context.Background())
	if err != nil || !slices.Contains(status.Problems, "peer b is not sealed with, so its packets are dropped: unreachable") {
		t.Errorf("ready, and no word about the peer that is not sealed with: %v, %v", status.Problems, err)
	}
	w.sealing.ring.set(func(s *keys.Status) { s.Peers = nil })
	if status, err := client.Status(context.Background()); err != nil || !strings.Contains(strings.Join(status.Problems, "\n"), "peer b is not sealed with") {
		t.Errorf("a peer that the key manager does not know: %v, %v", status.Problems, err)
	}
	w.sealing.ring.set(func(s *keys.Status) { s.Peers = []keys.PeerStatus{{Name: "b", EpochTX: 7, EpochRX: 7}} })
	if status, err := client.Status(context.Background()); err != nil || len(status.Problems) > 0 {
		t.Errorf("all is well: %v, %v", status.Problems, err)
	}
}

func TestEncryption(t *testing.T) {
	w, ctx := sealedWorld(), context.Background()
	answer := make(chan struct{})
	w.sealing.path = func(netip.Addr) (int, error) { <-answer; return 1400, nil }
	cfg := strictConfig(t)
	client, _ := w.start(t, cfg)
	eventually(t, "ready", func() bool { return ready(client) })
	status, err := client.Status(ctx)
	// The uplinks have 1450: (1450 - 60) & ^3 - 2.
	if err != nil || status.MTU != 1386 || !strings.HasPrefix(status.Encryption, "strict, bpf engine, epoch 7, 1 of 1 peers sealed, 1 post-quantum") {
		t.Errorf("status %+v %v", status, err)
	}
	var got *admin.Encryption
	path := func() admin.PathCheck {
		if got, err = client.Encrypt(ctx); err != nil {
			t.Fatal(err)
		}
		if got.Peers[0].Path == nil {
			return admin.PathCheck{}
		}
		return *got.Peers[0].Path
	}
	eventually(t, "the first probe", func() bool { return path() == admin.PathCheck{Probing: true} })
	close(answer)
	eventually(t, "the path", func() bool { return !path().Probing && got.Peers[0].Identities == 1 })
	peer := got.Peers[0]
	if got.Epoch == nil || got.Epoch.Number != 7 || got.Engine.Active != "bpf" || got.Lanes != 2 || got.Handshakes != 3 || got.FailedHandshakes != 3 || got.Rotations != 1 {
		t.Errorf("encryption %+v", got)
	}
	if peer.State != "up" || !peer.PostQuantum || peer.Sent.Packets != 7 || peer.Received.Bytes != 10 || !peer.Installed.Equal(time.Unix(8, 0)) ||
		peer.Outer != "IPv4" || peer.MTU != 1386 || peer.Identities != 1 || peer.Path.Fits != 1400 {
		t.Errorf("peer %+v %+v", peer, peer.Path)
	}
	eventually(t, "the narrow path", func() bool {
		status, err := client.Status(ctx)
		return err == nil && strings.Contains(strings.Join(status.Problems, "\n"), "the path to node b carries packets of 1400 bytes, pods' packets of 1386 need 1448 when sealed: set mtu: 1338")
	})
	w.mu.Lock()
	if !slices.Equal(w.sealing.identities["b"], []uint32{300}) || len(w.sealing.identities) != 1 {
		t.Errorf("identities %v", w.sealing.identities)
	}
	w.mu.Unlock()
	w.put(func(s *store.Snapshot) {
		s.EncryptionPolicies["p"] = &v1alpha1.EncryptionPolicy{Spec: v1alpha1.EncryptionPolicySpec{CIDRs: prefixes("10.9.0.0/16")}}
	})
	eventually(t, "the policy", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Equal(w.sealing.plain, prefixes("10.9.0.0/16"))
	})
	if got, err := client.Encrypt(ctx); err != nil || !slices.Equal(got.Plain, prefixes("10.9.0.0/16")) || strings.Contains(strings.Join(got.Problems, "\n"), "plain:") {
		t.Errorf("plain %v, problems %v, %v", got.Plain, got.Problems, err)
	}
	w.mu.Lock()
	w.sealing.plainErr = errors.New("the map is full")
	w.mu.Unlock()
	w.put(func(s *store.Snapshot) {
		s.EncryptionPolicies["p"] = &v1alpha1.EncryptionPolicy{Spec: v1alpha1.EncryptionPolicySpec{CIDRs: prefixes("10.8.0.0/16")}}
	})
	eventually(t, "a policy that cannot be applied", func() bool {
		got, err := client.Encrypt(ctx)
		if err != nil {
			t.Fatal(err)
		}
		problems := strings.Join(got.Problems, "\n")
		return slices.Equal(got.Plain, prefixes("10.9.0.0/16")) && strings.Contains(problems, "not applied yet, so sealed still: 10.8.0.0/16") &&
			strings.Contains(problems, "not asked for any more, and in cleartext until that is applied: 10.9.0.0/16")
	})
	dump, err := client.Sysdump(ctx)
	if err != nil || !strings.Contains(string(dump["encrypt"]), `"node":"b"`) {
		t.Errorf("sysdump %s %v", dump["encrypt"], err)
	}
}

// TestUnreadableEpoch is named wherever somebody may look, although the one before is in use still.
func TestUnreadableEpoch(t *testing.T) {
	w := sealedWorld()
	client, _ := w.start(t, strictConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	w.sealing.ring.set(func(s *keys.Status) {
		s.Newest = 8
		s.Epochs = append(s.Epochs, epochs.Status{Epoch: epochs.Epoch{Number: 8}, DEK: epochs.DEKFailed, Error: "the KMS refuses this node"})
	})
	encryption, err := client.Encrypt(context.Background())
	if err != nil || !slices.Contains(encryption.Problems, "epoch 8: the KMS refuses this node") || encryption.Epoch.Number != 7 {
		t.Errorf("encryption %+v, %v", encryption, err)
	}
	status, err := client.Status(context.Background())
	if err != nil || !slices.Contains(status.Problems, "keys: epoch 8: the KMS refuses this node") {
		t.Errorf("status %+v, %v", status, err)
	}
}

// TestUnansweredProbes are tried again soon, and then less and less often.
func TestUnansweredProbes(t *testing.T) {
	p := &paths{byNode: map[string]pathState{}}
	p.due(map[string]netip.Addr{"b": {}}, time.Now())
	var pauses []time.Duration
	for range 6 {
		pause := p.pauseAfter("b")
		pauses = append(pauses, pause)
		p.set("b", pathState{pause: pause})
		p.begin("b")
	}
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, probeRetry, probeRetry}
	if !slices.Equal(pauses, want) {
		t.Errorf("%v, want %v", pauses, want)
	}
	if len(p.due(map[string]netip.Addr{"b": {}}, time.Now())) != 0 {
		t.Error("due again while its probe runs")
	}
}

func TestRekeyRequested(t *testing.T) {
	w := sealedWorld()
	client, _ := w.start(t, strictConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	send := func(reason, dst string) {
		w.events <- datapath.FlowEvent{Type: datapath.EventDrop, Reason: reason, Dst: netip.MustParseAddrPort(dst)}
	}
	send("spoofed_ip", "10.2.0.2:1")
	send("no_key", "203.0.113.1:1") // nobody's
	send("no_key", "10.1.0.9:1")    // our own range
	send("no_key", "10.2.0.2:1")    // a known pod
	send("no_key", "10.2.0.77:1")   // an address of its range
	eventually(t, "the requests", func() bool {
		w.sealing.ring.mu.Lock()
		defer w.sealing.ring.mu.Unlock()
		return slices.Equal(w.sealing.ring.rekeyed, []string{"b", "b"})
	})
}

func TestMTUTooLargeIsRefused(t *testing.T) {
	cfg := strictConfig(t)
	cfg.MTU = 1450
	err := run(t.Context(), cfg, Options{}, sealedWorld().seams())
	if err == nil || !strings.Contains(err.Error(), "mtu: is 1450: sealed, it does not fit into the uplinks' MTU 1450: write at most 1386") {
		t.Error(err)
	}
}

func TestLaterNodeWithoutIPv4(t *testing.T) {
	w := sealedWorld()
	for _, name := range []string{"a", "b"} {
		node := *w.snapshot.Nodes[name]
		node.Spec.Addresses = append(slices.Clone(node.Spec.Addresses), netip.MustParseAddr("2001:db8::"+name))
		w.snapshot.Nodes[name] = &node
	}
	client, _ := w.start(t, strictConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	w.put(func(s *store.Snapshot) { s.Nodes["c"] = nodeObject("c", "2001:db8::c", "10.3.0.0/24") })
	eventually(t, "the problem", func() bool {
		status, err := client.Status(context.Background())
		return err == nil && strings.Contains(strings.Join(status.Problems, "\n"), "mtu: pods have 1386, and packets to a node without an IPv4 address fit when they have 1366")
	})
}

func TestEncryptMetrics(t *testing.T) {
	cfg := strictConfig(t)
	cfg.Metrics.Listen = freeAddress(t)
	client, _ := sealedWorld().start(t, cfg)
	eventually(t, "ready", func() bool { return ready(client) })
	var body []byte
	eventually(t, "the metrics", func() bool {
		response, err := http.Get("http://" + cfg.Metrics.Listen + "/metrics")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		body, _ = io.ReadAll(response.Body)
		return response.StatusCode == http.StatusOK
	})
	for _, want := range []string{
		`weft_encrypt_peers{state="up"} 1`, `weft_encrypt_peers{state="no_key"} 0`, `weft_encrypt_packets_total{direction="out"} 7`,
		`weft_encrypt_bytes_total{direction="in"} 10`, `weft_encrypt_errors_total{reason="no_key"} 0`, `weft_encrypt_handshakes_total{outcome="ok"} 3`,
		`weft_encrypt_rotations_total{reason="first"} 1`, `weft_encrypt_engine_info{active="bpf",asked="auto"} 1`, "weft_encrypt_epoch 7", "weft_encrypt_key_age_seconds 0",
		`weft_keys_refused_connections_total{reason="filtered"} 9`, `weft_keys_refused_connections_total{reason="unknown_source"} 2`,
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("no %s", want)
		}
	}
}

// storeWithDir gives out numbers through a real directory.
type storeWithDir struct {
	fakeStore
	*dir.Dir
}

func (s storeWithDir) Snapshot() (*store.Snapshot, error) { return s.fakeStore.Snapshot() }
func (s storeWithDir) Watch(ctx context.Context, changed func(store.Delta)) error {
	return s.fakeStore.Watch(ctx, changed)
}
func (s storeWithDir) PutEndpoint(ep *v1alpha1.Endpoint) error { return nil }
func (s storeWithDir) DeleteEndpoint(key string) error         { return nil }

func TestIdentityOf(t *testing.T) {
	w := sealedWorld()
	d, err := dir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{cfg: config.Default(), store: storeWithDir{fakeStore{w}, d}}
	a.index.Store(newIndex(w.snapshot))
	if n, err := a.identityOf("demo", "db", nil); n != 300 || err != nil {
		t.Errorf("known: %d %v", n, err)
	}
	first, err := a.identityOf("demo", "web", nil)
	again, err2 := a.identityOf("demo", "web", nil)
	if first < v1alpha1.MinIdentity || first != again || err != nil || err2 != nil {
		t.Errorf("new: %d %d %v %v", first, again, err, err2)
	}
	labelled, err := a.identityOf("demo", "web", map[string]string{"app": "web", "pod-template-hash": "1"})
	again, err2 = a.identityOf("demo", "web", map[string]string{"app": "web", "pod-template-hash": "2"})
	if labelled == first || labelled != again || err != nil || err2 != nil {
		t.Errorf("with labels: %d %d, without %d; %v %v", labelled, again, first, err, err2)
	}
	a.store = fakeStore{w}
	if _, err := a.identityOf("demo", "web", nil); err == nil {
		t.Error("a store without identities gave one")
	}
}

func TestKeysBackend(t *testing.T) {
	ctx := context.Background()
	client, _ := sealedWorld().start(t, strictConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	if status, err := client.Keys(ctx); err != nil || status.Epoch != 7 {
		t.Errorf("keys %+v %v", status, err)
	}
	if epoch, err := client.RotateKeys(ctx); err != nil || epoch.Number != 8 {
		t.Errorf("rotate %+v %v", epoch, err)
	}
	if events, err := client.KeyHistory(ctx); err != nil || len(events) != 1 {
		t.Errorf("history %+v %v", events, err)
	}
	off, _ := upWorld().start(t, testConfig(t))
	if _, err := off.Keys(ctx); err == nil || !strings.Contains(err.Error(), "encryption.mode is off") {
		t.Errorf("keys when off: %v", err)
	}
	alone := sealedWorld()
	delete(alone.snapshot.Nodes, "b")
	single, _ := alone.start(t, strictConfig(t))
	eventually(t, "ready", func() bool { return ready(single) })
	if _, err := single.RotateKeys(ctx); err == nil || !strings.Contains(err.Error(), "knows no other node") {
		t.Errorf("rotate alone: %v", err)
	}
}

// TestRecords puts what the key manager and the KEK tell into the audit log, unless it is off.
func TestRecords(t *testing.T) {
	cfg := testConfig(t)
	parts := keyParts{cfg: cfg, log: slog.New(slog.DiscardHandler)}
	for _, off := range []bool{false, true} {
		if off {
			cfg.Keys.Audit.File = config.AuditOff
		}
		r := openRecords(parts)
		r.add(audit.Record{Time: time.Now(), Event: audit.EventCreated, Epoch: 1})
		r.kek(audit.Record{Time: time.Now(), Op: "unwrap", Epoch: 1, Outcome: "denied", Detail: "no"})
		if err := errors.Join(r.err(), r.close()); err != nil {
			t.Fatal(err)
		}
		if got := r.meter.Health(); got.LastErrorKind != "denied" {
			t.Errorf("the meter says %+v", got)
		}
		got, err := auditlog.Read(filepath.Join(cfg.StateDir(), "audit.jsonl"), 0)
		if err != nil || len(got) != 2 || got[0].Op != audit.OpCreate || got[1].Outcome != "denied" || got[1].Node != cfg.Node {
			t.Errorf("off %v: %+v, %v", off, got, err)
		}
	}
}
