package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/cli/cmdutil"
)

func TestPolicyCheck(t *testing.T) {
	const policies, pods = "testdata/policies.yaml", "testdata/pods.yaml"
	const strict = "testdata/strict.yaml"
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	good, err := os.ReadFile(policies)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(broken,
		[]byte(strings.Replace(string(good), "port: 5432", "port: 54321234", 1)),
		0o644); err != nil {
		t.Fatal(err)
	}
	packet := func(file, from, to string) []string {
		return []string{"policy", "check", file, pods, "--from", from, "--to", to}
	}
	tests := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"table", []string{"policy", "check", policies, pods}, cmdutil.ExitOK,
			"POD                INGRESS                  EGRESS\n" +
				"kube-system/proxy  host network: no policy  host network: no policy\nshop/db            shop/db                  all allowed\n" +
				"shop/web           shop/web                 shop/web\nNetworkPolicy shop/later is about no pod in these files\n"},
		{"no pods", []string{"policy", "check", policies}, cmdutil.ExitOK,
			"no pods in these files"},
		{"allowed", packet(policies, "shop/web", "shop/db:5432/tcp"), cmdutil.ExitOK,
			"shop/web → shop/db:5432/tcp: allow\n" +
				"  egress   allow  NetworkPolicy shop/web, spec.egress[0] (testdata/policies.yaml:29)\n" +
				"  ingress  allow  NetworkPolicy shop/db, spec.ingress[0] (testdata/policies.yaml:11)\n"},
		{"denied by a port", packet(policies, "shop/web", "shop/db:5433/tcp"), exitDenied,
			"  ingress  deny   isolated by NetworkPolicy shop/db: no rule of ingress allows it\n" +
				"                  to allow it: NetworkPolicy shop/db, spec.ingress[0] (testdata/policies.yaml:11) allows this peer 5432/tcp: add 5433/tcp there\n"},
		{"denied from outside", packet(policies, "192.0.2.9", "shop/db:5432/tcp"), exitDenied,
			"ingress  deny"},
		{"named port", packet(policies, "2001:db8::1", "shop/web:http/tcp"), cmdutil.ExitOK,
			"spec.ingress[0] (testdata/policies.yaml:26)"},
		{"the port's number", packet(policies, "shop/db", "shop/web:8081/TCP"), exitDenied,
			"  egress   allow  no policy is about egress of shop/db\n  ingress  deny"},
		{"to outside", packet(policies, "shop/web", "[2001:db8::1]:443/tcp"), exitDenied,
			"egress   deny"},
		{"ICMP", packet(policies, "shop/web", "shop/db/icmp"), exitDenied, "ingress  deny"},
		{"a pod to itself", packet(policies, "shop/db", "shop/db:1/tcp"), cmdutil.ExitOK,
			"shop/db → shop/db:1/tcp: allow"},
		{"a host's pod", packet(policies, "kube-system/proxy", "shop/db:5432/tcp"), exitDenied,
			"ingress  deny"},
		{"an error", []string{"policy", "check", broken, pods}, exitWrongObject,
			"broken.yaml:14: NetworkPolicy shop/db: spec.ingress[0].ports[0].port: is 54321234: want 1 to 65535\n"},
		{"an error is worse than a denial", packet(broken, "shop/web", "shop/db:5432/tcp"),
			exitWrongObject, "to allow it: correct what is wrong, since nothing is allowed by it until then: "},
		{"twice", []string{"policy", "check", policies, policies}, exitWrongObject,
			"testdata/policies.yaml:2: NetworkPolicy shop/db: is declared a second time"},
		{"no such pod", packet(policies, "shop/gone", "shop/db:1/tcp"), cmdutil.ExitUsage,
			"no file has a pod shop/gone"},
		{"a pod's address", packet(policies, "10.1.0.1", "shop/db:1/tcp"), cmdutil.ExitUsage,
			"10.1.0.1 is the address of pod shop/web: name the pod"},
		{"no such port", packet(policies, "shop/db", "shop/web:https/tcp"), cmdutil.ExitUsage,
			`shop/web has no port "https"`},
		{"no protocol", packet(policies, "shop/web", "db"), cmdutil.ExitUsage, "names no protocol"},
		{"only one end", []string{"policy", "check", policies, "--from", "shop/web"},
			cmdutil.ExitUsage, "go together"},
		{"sealed", append(packet(strict, "shop/web", "shop/db:5432/tcp"), policies), cmdutil.ExitOK,
			"ingress  allow"},
		{"in cleartext", append(packet(strict, "shop/web", "shop/db:5432/tcp"), policies,
			"--cleartext"), exitDenied,
			"PeerAuthentication shop/strict demands STRICT, and this does not come sealed: spec.mtls.mode (testdata/strict.yaml:6)"},
		{"which pods a PeerAuthentication is about", []string{"policy", "check", strict, pods},
			cmdutil.ExitOK, "shop/db            PeerAuthentication shop/strict  all allowed"},
		{"in cleartext from nobody", []string{"policy", "check", policies, "--cleartext"},
			cmdutil.ExitUsage, "--cleartext is about a packet"},
		{"no file", []string{"policy", "check", "gone.yaml"}, cmdutil.ExitFailed,
			"read gone.yaml: no such file"},
		{"JSON", append(packet(policies, "shop/web", "shop/db:5432/tcp"), "-o", "json"),
			cmdutil.ExitOK, `"field": "spec.egress[0]"`},
		{"YAML", append(packet(policies, "shop/web", "shop/db:9/tcp"), "-o", "yaml"), exitDenied,
			"verdict: deny"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errOut := call(t, tt.args...)
			if code != tt.code || !strings.Contains(out+errOut, tt.want) {
				t.Errorf("code %d, want %d\n%s%s\nwant: %s", code, tt.code, out, errOut, tt.want)
			}
		})
	}
}
