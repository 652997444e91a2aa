package cli

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/cli/cmdutil"
)

// TestPolicyVerbs are those that ask the agent.
func TestPolicyVerbs(t *testing.T) {
	runDir := t.TempDir()
	serve(t, runDir, "", fake{})
	for _, tt := range []struct {
		name, args string
		code       int
		want       string
	}{
		{"list", "policy list", cmdutil.ExitOK,
			"KIND           POLICY    ISOLATES         RULES  STATE       PODS OF a\n" +
				"NetworkPolicy  shop/db   ingress, egress  0      denies all  -\nNetworkPolicy  shop/web  ingress          1      in force    shop/web\n" +
				"db.yaml:4: NetworkPolicy shop/db: spec.x: unknown key\n\nPOD       INGRESS   EGRESS       DENIED\nshop/web  shop/web  all allowed  7\n"},
		{"where they are declared", "policy list -o wide", cmdutil.ExitOK,
			"in force    shop/web   web.yaml:2\n"},
		{"list as JSON", "policy list -o json", cmdutil.ExitOK, `"denied": 7`},
		{"get", "policy get shop/web", cmdutil.ExitOK,
			"NetworkPolicy shop/web: in force\nDeclared:  web.yaml:2\nIsolates:  ingress\nPods here: shop/web\n" +
				"Rule:      NetworkPolicy shop/web, spec.ingress[0] (web.yaml:8)\n\nSet 12, ingress of shop/web:\n" +
				"VERDICT  PEER                       PORTS   RULE\n" +
				"allow    front/default role=client  80/tcp  NetworkPolicy shop/web, spec.ingress[0] (web.yaml:8)\n" +
				"deny     192.0.2.0/24               any     -\n"},
		{"get by kind", "policy get NetworkPolicy/shop/web -o yaml", cmdutil.ExitOK,
			"kernelSet: 12"},
		{"get of another kind", "policy get AuthorizationPolicy/shop/web", cmdutil.ExitFailed,
			"knows no policy shop/web"},
		{"get without namespace", "policy get web", cmdutil.ExitUsage,
			`"web" is no policy: give NAMESPACE/NAME`},
		{"allowed", "policy explain --from front/client --to shop/web:80/tcp", cmdutil.ExitOK,
			"front/client → shop/web:80/tcp: allow\n" +
				"  ingress  allow  NetworkPolicy shop/web, spec.ingress[0] (web.yaml:8)\n\nthe maps of node a say the same\n"},
		{"denied", "policy explain --from front/client --to shop/web:81/tcp", exitDenied,
			"front/client → shop/web:81/tcp: deny\n" +
				"  ingress  deny   isolated by NetworkPolicy shop/web: no rule of ingress allows it\n                  to allow it: add one\n"},
		{"half elsewhere", "policy explain --from far/pod --to shop/web:80/tcp", cmdutil.ExitOK,
			"\n  egress of far/pod is judged by node b\n"},
		{"maps that differ", "policy explain --from front/client --to shop/web:9/tcp", exitDisagree,
			"the maps of node a say something else, and they decide"},
		{"maps that differ, in JSON",
			"policy explain --from front/client --to shop/web:9/tcp -o json", exitDisagree,
			`"disagreements": [`},
		{"JSON", "policy explain --from front/client --to shop/web:81/tcp -o json", exitDenied,
			`"remedy": "add one"`},
		{"no such pod", "policy explain --from front/client --to shop/gone:81/tcp",
			cmdutil.ExitFailed, "knows no pod"},
		{"no port", "policy explain --from front/client --to shop/web/tcp", cmdutil.ExitUsage,
			"names no port"},
		{"no end", "policy explain --from front/client", cmdutil.ExitUsage, `"to"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errOut := weft(runDir, strings.Fields(tt.args)...)
			if code != tt.code || !strings.Contains(out+errOut, tt.want) {
				t.Errorf("code %d, want %d\n%s%s\nwant: %s", code, tt.code, out, errOut, tt.want)
			}
		})
	}
}
