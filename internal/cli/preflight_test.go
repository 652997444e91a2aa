package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"weft.dev/weft/internal/netns/nettest"
	"weft.dev/weft/internal/preflight"
)

// TestPreflight looks at a namespace of its own, in which everything but keys is there, and changes
// nothing in it.
func TestPreflight(t *testing.T) {
	ns, other := nettest.New(t, "preflight"), nettest.New(t, "preflight")
	nettest.Wire(t,
		nettest.End{NetNS: ns, Name: "w0", Addrs: []string{"192.0.2.1/24", "2001:db8::1/64"}},
		nettest.End{NetNS: other, Name: "w0", Addrs: []string{"192.0.2.2/24"}})
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	instance := fmt.Sprintf("preflight-%d", os.Getpid())
	write("objects/node.yaml", "apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: a}\n"+
		"spec: {addresses: [192.0.2.1, \"2001:db8::1\"], podCIDRs: [10.1.1.0/24]}\n")
	config := write("agent.yaml",
		fmt.Sprintf("node: a\ninstance: %s\nstore: {dir: %s/objects}\npaths: {run: %s/run, state: %s/state}\n"+
			"keys: {kek: \"file://%s/kek\", certificates: {cert: %s/crt, key: %s/key, bundle: %s/ca}}\n", instance, dir, dir, dir, dir, dir, dir, dir))

	dirs := []string{dir, "/sys/fs/bpf/weft/" + instance, "/run/weft/" + instance,
		"/var/lib/weft/" + instance, "/etc/weft"}
	before := nettest.State(t, ns, dirs...)
	cmd := exec.Command("nsenter", "--net="+ns, os.Args[0], "preflight", "--config", config, "-o",
		"json")
	cmd.Env = append(os.Environ(), asWeft+"=1")
	out, err := cmd.Output()
	changes := nettest.Changes(before, nettest.State(t, ns, dirs...))
	if changes != nil {
		t.Errorf("it changed %q", changes)
	}
	var report preflight.Report
	if json.Unmarshal(out, &report) != nil || cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("exit code %d, %v: %s", cmd.ProcessState.ExitCode(), err, out)
	}
	var failed []string
	found := map[string]string{}
	for _, c := range report.Checks {
		found[c.Name] = c.Found
		if c.State == preflight.Fail {
			failed = append(failed, c.Name)
		}
	}
	if want := []string{"certificate", "kek"}; !slices.Equal(failed, want) || report.OK {
		t.Errorf("what fails is %v, want %v: %s", failed, want, out)
	}
	if found["uplinks"] != "w0" || found["mtu"] != "1500 on the uplinks, 1438 for pods" {
		t.Errorf("uplinks %q, mtu %q", found["uplinks"], found["mtu"])
	}
}
