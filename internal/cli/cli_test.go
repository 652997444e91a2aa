package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/connectivity"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
)

func TestMain(m *testing.M) {
	if os.Getenv(asWeft) != "" {
		os.Exit(Execute())
	}
	for _, name := range []string{"WEFT_INSTANCE", "WEFT_SOCKET", "WEFT_LAB"} {
		os.Unsetenv(name)
	}
	os.Exit(m.Run())
}

// fake is an agent.
type fake struct{ notReady bool }

func (f fake) Ready() admin.Readiness { return admin.Readiness{Ready: !f.notReady} }
func (f fake) Status(context.Context) (*admin.Status, error) {
	return &admin.Status{
		Node: "a", Ready: !f.notReady, Waiting: "the test", Version: "v1", PID: 7,
		Started:   time.Now(),
		Mode:      datapath.ModeStatus{Asked: "auto", Active: "tc", Why: "of the test"},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Problems:  []string{"a small one"},
		Links: []datapath.LinkStatus{{Hook: "from_pod", Interface: "weft0", Kind: "xdp",
			ProgramID: 9}},
	}, nil
}
func (fake) Endpoints(context.Context) ([]admin.Endpoint, error) {
	return []admin.Endpoint{
		{ID: "01", Namespace: "demo", Pod: "web", IPv4: netip.MustParseAddr("10.1.0.2"),
			State: "ready", Labels: map[string]string{"b": "2", "a": "1"},
			Traffic: []admin.CounterRow{{Direction: "egress", Verdict: "forward",
				Traffic: datapath.Traffic{Packets: 5}}}},
		{ID: "02", Namespace: "prod", Pod: "web", IPv6: netip.MustParseAddr("fd00::2"),
			State: "ready"},
	}, nil
}
func (fake) Nodes(context.Context) ([]admin.Node, error) {
	return []admin.Node{{Name: "a", Self: true}, {Name: "b", Endpoints: 3}}, nil
}
func (fake) FlowTable(context.Context, int) ([]admin.TableFlow, error) { return nil, nil }
func (fake) ForgetNode(_ context.Context, what string) ([]admin.NoNode, error) {
	if what == "nobody" {
		return nil, &admin.StatusError{Code: http.StatusNotFound, Msg: "nobody was not lost"}
	}
	return []admin.NoNode{{Prefix: netip.MustParsePrefix("10.77.2.0/24"), Node: what}}, nil
}
func (fake) Drops(_ context.Context, all bool) ([]admin.Drop, error) {
	return []admin.Drop{
		{Reason: "spoofed_ip", Text: "not its address", Direction: "egress", Endpoint: "demo/web",
			Traffic: datapath.Traffic{Packets: 2, Bytes: 80}},
		{Reason: "spoofed_ip", Text: "not its address", Direction: "egress", Endpoint: "prod/web",
			Traffic: datapath.Traffic{Packets: 1, Bytes: 40}},
	}, nil
}
func (fake) Trace(_ context.Context, r admin.TraceRequest) (*admin.TraceResult, error) {
	if r.From == "nobody" {
		return nil, &admin.StatusError{Code: http.StatusBadRequest,
			Msg: "from: this node has no endpoint \"nobody\""}
	}
	result := &admin.TraceResult{From: r.From, To: r.To, Protocol: r.Protocol,
		Trace: datapath.Trace{
			Verdict: "forward", Steps: []datapath.TraceStep{{Hook: "from_pod", Step: "route",
				Detail: "node b"}},
		}}
	if strings.HasPrefix(r.To, "10.9.") {
		result.Verdict, result.Reason, result.ReasonText = "drop", "no_route", "nobody has it"
	}
	return result, nil
}
func (fake) Encrypt(context.Context) (*admin.Encryption, error) {
	now := time.Now()
	return &admin.Encryption{
		Node: "a", Mode: "strict", Port: 4500, Lanes: 2,
		Engine: admin.EncryptEngine{Asked: "auto", Active: "bpf", Why: "of the test"},
		Certificate: &admin.NodeCertificate{ID: "spiffe://weft.local/node/a",
			NotAfter: now.Add(72 * time.Hour)},
		Epoch: &admin.EncryptEpoch{Number: 7, Created: now.Add(-time.Hour),
			Expires: now.Add(71 * time.Hour), KEK: "file:///etc/weft/kek"},
		Sent: datapath.Traffic{Packets: 5, Bytes: 500},
		Peers: []admin.EncryptPeer{
			{Node: "b", State: "up", SendEpoch: 7, ReceiveEpoch: 7, PostQuantum: true,
				Group: "X25519MLKEM768", Handshake: now,
				Path: &admin.PathCheck{Configured: 1500, Fits: 1400}},
			{Node: "c", State: "failed", Problem: "the peer cannot be reached",
				Path: &admin.PathCheck{Configured: 1500, Checked: now}},
			{Node: "d", State: "no_key", Path: &admin.PathCheck{Probing: true}},
			{Node: "e", State: "no_key"},
		},
		Plain: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		Errors: []admin.Drop{{Reason: "esp_replayed", Text: "seen before",
			Traffic: datapath.Traffic{Packets: 3}}},
	}, nil
}
func (f fake) Sysdump(ctx context.Context) (admin.Sysdump, error) {
	status, _ := f.Status(ctx)
	text, err := json.Marshal(status)
	return admin.Sysdump{"status": text, "config": []byte(`{"node":"a"}`)}, err
}
func (fake) Flows(_ context.Context, query admin.FlowQuery, send func(flows.Flow) error) error {
	for _, port := range []uint16{80, 443} {
		flow := flows.Flow{Type: "new", Verdict: flows.Forwarded, Protocol: "tcp",
			Destination: flows.Peer{Port: port,
				Identity: flows.Identity{Namespace: "demo", Pod: "web"}}}
		if err := send(flow); err != nil {
			return err
		}
	}
	return nil
}

// serve runs a fake agent for an instance below a run directory.
func serve(t *testing.T, runDir, instance string, backend admin.Backend) {
	t.Helper()
	server, err := admin.Listen(filepath.Join(runDir, instance, admin.SocketName), backend, nil,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve()
	t.Cleanup(func() { server.Close() })
}

// weft runs one command line.
func weft(runDir string, args ...string) (code int, out, errOut string) {
	var stdout, stderr bytes.Buffer
	code = run(context.Background(), args, runDir, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestVerbs(t *testing.T) {
	runDir := t.TempDir()
	serve(t, runDir, "", fake{})
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"status", 0, "tc (asked for auto): of the test"},
		{"status", 0, "Problem:"},
		{"status -o wide", 0, "from_pod  weft0"},
		{"status -o json", 0, `"active": "tc"`},
		{"status -o yaml", 0, "  active: tc\n"},
		{"endpoint list", 0, "demo/web  10.1.0.2  -"},
		{"endpoint list -o wide", 0, "a=1,b=2"},
		{"ep ls -o json", 0, `"pod": "web"`},
		{"endpoint get demo/web", 0, "egress     forward          5"},
		{"endpoint get 10.1.0.2", 0, "demo/web"},
		{"endpoint get 02 -o yaml", 0, "ipv6: fd00::2"},
		{"node list", 0, "a (this one)"},
		{"flows", 0, "FORWARDED tcp     ? -> demo/web:80\n"},
		{"flows -o json --last 2", 0, `"port":443`},
		{"flows -o yaml", 0, "---\ntime:"},
		{"flows table", 0, "the flow table is empty"},
		{"drops", 0, "spoofed_ip  3        120    not its address"},
		{"drops --all -o wide", 0, "prod/web"},
		{"trace --from demo/web --to 10.1.0.9:80/tcp", 0, "verdict: forward"},
		{"trace --from demo/web --to 10.9.0.9:80/tcp", 4,
			"verdict: drop (no_route): nobody has it"},
		{"trace --from demo/web --to [fd00::9]:53/udp -o json", 0, `"to": "[fd00::9]:53"`},
		{"version", 0, "kernel:"},
		{"version -o json", 0, `"go": "go1`},
		{"config example", 0, "node:"},
		{"config example -o json", 0, `"mode": "auto"`},
		{"help exit-codes", 0, "no agent answers"},
		{"endpoint", 0, "Available Commands"},
		{"__complete endpoint get ", 0, "prod/web"},
		{"__complete flows --from ", 0, "demo/web"},
		{"__complete flows --reason ", 0, "spoofed_ip"},
		{"__complete status -o ", 0, "yaml"},
	} {
		code, out, errOut := weft(runDir, strings.Split(test.args, " ")...)
		if code != test.code || !strings.Contains(out, test.want) {
			t.Errorf("weft %s: code %d\n%s%s", test.args, code, out, errOut)
		}
	}
}

func TestErrors(t *testing.T) {
	runDir, empty := t.TempDir(), t.TempDir()
	serve(t, runDir, "", fake{})
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("node: a\nmood: auto\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		runDir, args string
		code         int
		want         string
	}{
		{empty, "status", 3,
			"weft: no agent answers on " + filepath.Join(empty, "agent.sock") +
				": is it running? start it with `weft agent --config FILE`\n"},
		{empty, "flows -f", 3, "no agent answers"},
		{empty, "connectivity test", 3, "no agent answers"},
		{empty, "sysdump", 3, "no agent answers"},
		{empty, "trace --from a --to 10.0.0.1:1/tcp", 3, "no agent answers"},
		{runDir, "status --instance other", 3, "name one with --instance or --socket"},
		{runDir, "endpoint get web", 1, "is 2 endpoints"},
		{runDir, "endpoint get nobody", 1, "no endpoint \"nobody\""},
		{runDir, "trace --from nobody --to 10.0.0.1:1/tcp", 1, "no endpoint \"nobody\""},
		{runDir, "config check " + bad, 1, "bad.yaml:2"},
		{runDir, "config check /nowhere/at/all", 1, "/nowhere/at/all"},
		{runDir, "agent --config /nowhere/at/all", 1, "/nowhere/at/all"},
		{runDir, "statsu", 2, "unknown command \"statsu\""},
		{runDir, "endpoint lst", 2, "unknown command \"lst\""},
		{runDir, "status extra", 2, "extra"},
		{runDir, "endpoint get", 2, "accepts 1 arg"},
		{runDir, "status --nope", 2, "unknown flag: --nope"},
		{runDir, "status -o xml", 2, "use one of table, wide, json, yaml"},
		{runDir, "sysdump -o xml", 2, "unknown output format"},
		{runDir, "trace --from a", 2, "required flag(s) \"to\""},
		{runDir, "trace --from a --to 10.0.0.1:80", 2, "names no protocol"},
		{runDir, "trace --from a --to 10.0.0.1/tcp", 2, "names no port"},
		{runDir, "trace --from a --to web:80/tcp", 2, "is no address"},
		{runDir, "flows --verdict maybe", 2, "unknown verdict"},
		{runDir, "flows --last many", 2, "invalid argument"},
		{runDir, "flows table --limit 0", 2, "--limit"},
		{runDir, "connectivity test --from nobody", 2, "no pod or node \"nobody\""},
	} {
		code, out, errOut := weft(test.runDir, strings.Split(test.args, " ")...)
		if code != test.code || !strings.Contains(errOut, test.want) ||
			strings.Contains(errOut, "goroutine") {
			t.Errorf("weft %s: code %d\n%s%s", test.args, code, out, errOut)
		}
		if !strings.HasPrefix(errOut, "weft: ") {
			t.Errorf("weft %s: not a sentence: %s", test.args, errOut)
		}
	}
}

func TestNotReady(t *testing.T) {
	runDir := t.TempDir()
	serve(t, runDir, "", fake{notReady: true})
	code, out, errOut := weft(runDir, "status")
	if code != 1 || !strings.Contains(out, "not ready, waiting for the test") || errOut != "" {
		t.Errorf("%d %s %s", code, out, errOut)
	}
}

func TestChoosesAgent(t *testing.T) {
	runDir := t.TempDir()
	serve(t, runDir, "lab-a", fake{})
	if code, _, errOut := weft(runDir, "status"); code != 0 {
		t.Errorf("the only agent: %d %s", code, errOut)
	}
	serve(t, runDir, "lab-b", fake{})
	code, _, errOut := weft(runDir, "status")
	if code != 2 || !strings.Contains(errOut, "name one with --instance lab-a | lab-b") {
		t.Errorf("two agents: %d %s", code, errOut)
	}
	if code, _, errOut := weft(runDir, "status", "--instance", "lab-b"); code != 0 {
		t.Errorf("named: %d %s", code, errOut)
	}
	if code, _, errOut := weft(runDir, "status", "--socket",
		filepath.Join(runDir, "lab-a", "agent.sock")); code != 0 {
		t.Errorf("socket: %d %s", code, errOut)
	}
	if code, out, _ := weft(runDir, "__complete", "status", "--instance", ""); code != 0 ||
		!strings.Contains(out, "lab-b") {
		t.Errorf("completion: %d %s", code, out)
	}
	// Both are in our network namespace, so that alone does not decide. The default instance does.
	serve(t, runDir, "", fake{})
	if code, _, errOut := weft(runDir, "status"); code != 0 {
		t.Errorf("default among several: %d %s", code, errOut)
	}
}

func TestEncryptStatus(t *testing.T) {
	runDir := t.TempDir()
	serve(t, runDir, "", fake{})
	code, out, errOut := weft(runDir, "encrypt", "status")
	if code != cmdutil.ExitFailed || errOut != "" { // c has no keys
		t.Errorf("code %d, %s", code, errOut)
	}
	for _, want := range []string{
		"bpf (asked for auto): of the test",
		"7, 1h0m old, ends in 2d23h, wrapped by file:///etc/weft/kek",
		"spiffe://weft.local/node/a, expires in 3d0h", "10.9.0.0/16",
		"b     up      7/7           yes  0       0       1400 of 1500",
		"c     failed  0/0           -    0       0       no answer     the peer cannot be reached",
		"d     no_key  0/0           -    0       0       probing ",
		"e     no_key  0/0           -    0       0       -  ",
		"esp_replayed  3        seen before",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, out, _ := weft(runDir, "encrypt", "status", "-o", "wide"); !strings.Contains(out,
		"X25519MLKEM768") {
		t.Errorf("wide:\n%s", out)
	}
	if _, out, _ := weft(runDir, "encrypt", "status", "-o", "json"); !strings.Contains(out,
		`"state": "up"`) {
		t.Errorf("json:\n%s", out)
	}
}

func TestSysdump(t *testing.T) {
	runDir := t.TempDir()
	serve(t, runDir, "", fake{})
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	if code, out, errOut := weft(runDir, "sysdump", "-o", file); code != 0 ||
		!strings.Contains(out, "wrote "+file) {
		t.Fatalf("%d %s %s", code, out, errOut)
	}
	if code, _, errOut := weft(runDir, "sysdump", "--file", file); code != 1 ||
		!strings.Contains(errOut, "exists") {
		t.Errorf("over an old one: %d %s", code, errOut)
	}
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if info, _ := in.Stat(); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	plain, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
	}
	for _, want := range []string{"weft-sysdump/agent/status.json",
		"weft-sysdump/agent/config.json", "weft-sysdump/cli-version.json"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %v", want, names)
		}
	}
}

func TestConnectivityTable(t *testing.T) {
	report := &connectivity.Report{Passed: 3, Failed: 1, Results: []connectivity.Result{
		{From: "demo/a", To: "demo/b", Family: "v4", Protocol: "icmp", Test: "small", OK: true,
			RTT: 41.6},
		{From: "demo/a", To: "demo/b", Family: "v4", Protocol: "udp", Test: "mtu", Size: 1500,
			Detail: "no answer"},
		{From: "demo/b", To: "demo/a", Family: "v6", Protocol: "tcp", Test: "transfer", OK: true,
			RTT: 80},
	}}
	var out bytes.Buffer
	if err := writeConnectivity(&out, report, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FAIL mtu",
		"FAILED demo/a -> demo/b udp v4, mtu, 1500 bytes: no answer", "3 tests passed, 1 failed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	out.Reset()
	if err := writeConnectivity(&out, report, true); err != nil ||
		!strings.Contains(out.String(), "transfer") {
		t.Errorf("%v\n%s", err, &out)
	}
}
