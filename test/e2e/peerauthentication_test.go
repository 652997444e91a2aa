package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/policy"
)

const (
	strictShop = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: shop, namespace: shop}
spec:
  mtls: {mode: STRICT}
`
	strictWeb = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  mtls: {mode: STRICT}
`
	permissiveWeb = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  mtls: {mode: PERMISSIVE}
`
	// exemptOther has what other sends and gets travel in cleartext.
	exemptOther = `apiVersion: weft.dev/v1alpha1
kind: EncryptionPolicy
metadata: {name: other-is-plain}
spec:
  selector: {matchLabels: {role: other}}
`
)

// TestPeerAuthentication: STRICT pods let in what comes sealed, or from their own node, and
// nothing else, by whatever way it reaches them.
func TestPeerAuthentication(t *testing.T) {
	l := newLab(t, "mtls", parseSpec(t, policyNodes, "strict"))
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	serveEcho(t, l.Pods()...)
	policies, mesh := matrix{lab: l}, strings.Replace(strictShop, "namespace: shop",
		"namespace: istio-system", 1)
	port := func(mode, of string) string {
		return strictWeb[:strings.Index(strictWeb, "  mtls:")] +
			fmt.Sprintf("  mtls: {mode: %s}\n  portLevelMtls: {%d: {mode: %s}}\n", mode, echoPort, of)
	}
	for i, row := range []struct{ name, exempt, objects, refused string }{
		{"strict, and all is sealed", "", mesh, ""},
		{"strict in a namespace", exemptOther, strictShop, "other web"},
		{"strict in the mesh", exemptOther, mesh,
			"other web,other client,client other,web other"},
		{"permissive pods of a strict mesh", exemptOther, mesh + "---\n" + permissiveWeb,
			"other client,client other,web other"},
		{"disabled", exemptOther, strings.Replace(strictShop, "STRICT", "DISABLE", 1), ""},
		{"a permissive port", exemptOther, port("STRICT", "PERMISSIVE"), ""},
		{"a strict port", exemptOther, port("PERMISSIVE", "STRICT"), "other web"},
		{"with a mistake", exemptOther, strings.Replace(strictWeb, "STRICT", "STRIKT", 1),
			"other web"},
		{"an exempt pod is strict", strings.Replace(exemptOther, "role: other", "app: web", 1),
			strictShop, "other web,db web,web db"},
		{"beside a NetworkPolicy", exemptOther, strictShop + "---\n" + denyShop,
			"client web,client db,other web,other db,web db,db web"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.exempt != "" {
				putObject(t, l, "exempt.yaml", row.exempt)
			}
			prefix := fmt.Sprintf("row%d-", i)
			putObject(t, l, "peers.yaml",
				strings.ReplaceAll(row.objects, "{name: ", "{name: "+prefix))
			inForce(t, l, prefix)
			policies.holds(t, strings.FieldsFunc(row.refused, func(r rune) bool { return r == ',' }))
			policies.probed(t, "web")
		})
	}
	for _, mode := range []string{"stack", "xdp"} {
		t.Run("mode "+mode, func(t *testing.T) {
			reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			putObject(t, l, "peers.yaml", mesh)
			policies.holds(t, nil)
			putObject(t, l, "exempt.yaml", exemptOther)
			policies.holds(t, []string{"other web", "other client", "client other",
				"web other"})
			policies.probed(t, "web")
		})
	}
	t.Run("explained", func(t *testing.T) { explainedStrict(t, l) })
	t.Run("cut", func(t *testing.T) { cutByStrict(t, l) })
	t.Run("never open", func(t *testing.T) { neverOpen(t, l) })
	t.Run("encryption off", func(t *testing.T) {
		reconfigure(t, map[string]any{"encryption": map[string]any{"mode": "off"}}, agents(l)...)
		putObject(t, l, "peers.yaml", strictShop)
		policies.holds(t, []string{"other web", "client db", "web db", "db web"})
		policies.probed(t, "web")
	})
}

// inForce waits until the agents have a policy whose name begins so, and their maps what it says.
func inForce(t *testing.T, l *lab.Lab, prefix string) {
	t.Helper()
	for _, n := range agents(l) {
		eventually(t, "the policies of "+n.Name, func() error {
			list, err := admin.NewClient(n.Socket).Policies(t.Context())
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(list.Policies, func(p policy.Summary) bool {
				return strings.HasPrefix(p.Name, prefix)
			}) {
				return fmt.Errorf("%v", list.Policies)
			}
			for _, to := range []string{"web", "db"} {
				if _, err := explained(t.Context(), n, l.Pod("client"), l.Pod(to), 4, "tcp",
					echoPort); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// explainedStrict: the node of a STRICT pod says of whom it lets in what becomes of his packets.
func explainedStrict(t *testing.T, l *lab.Lab) {
	putObject(t, l, "exempt.yaml", exemptOther)
	putObject(t, l, "peers.yaml", strictShop)
	matrix{lab: l}.holds(t, []string{"other web"})
	const demand = "PeerAuthentication shop/shop demands STRICT, and this does not come sealed"
	for _, tt := range []struct {
		from, to string
		want     policy.Verdict
	}{{"other", "web", policy.Deny}, {"db", "web", policy.Allow}, {"client", "web", policy.Allow},
		{"client", "db", policy.Allow}, {"other", "db", policy.Allow}} {
		from, to := l.Pod(tt.from), l.Pod(tt.to)
		for _, family := range []int{4, 6} {
			e, err := explained(t.Context(), l.Node(to.Node), from, to, family, "tcp", echoPort)
			if err != nil {
				t.Errorf("%s to %s: %v", tt.from, tt.to, err)
				continue
			}
			if e.Verdict != tt.want || tt.want == policy.Deny &&
				!strings.HasPrefix(e.Ingress.Why, demand) {
				t.Errorf("%s to %s IPv%d: %s, %s", tt.from, tt.to, family, e.Verdict, e.Ingress.Why)
			}
		}
	}
	out, _, _ := weft(t, "flows", "--instance", l.Node("a").Instance, "--verdict", "dropped")
	if !strings.Contains(out, demand) {
		t.Errorf("no flow says that %s:\n%s", demand, out)
	}
}

// cutByStrict: a conversation in cleartext ends when STRICT arrives, and one that is sealed when it
// is to travel in cleartext; both go on afterwards.
func cutByStrict(t *testing.T, l *lab.Lab) {
	for _, row := range []struct{ name, before, file, text string }{
		{"strict comes", exemptOther, "peers.yaml", strictShop},
		{"cleartext comes", strictShop, "exempt.yaml", exemptOther},
	} {
		t.Run(row.name, func(t *testing.T) {
			putObject(t, l, "before.yaml", row.before)
			web := l.Pod("web")
			node := l.Node(web.Node)
			c, err := startCall(l.Pod("other").NetNS, netip.AddrPortFrom(web.IPv4, echoPort))
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			more := func(what string, count func() int64) {
				t.Helper()
				from := count()
				eventually(t, what, func() error {
					if now := count(); now < from+100 {
						return fmt.Errorf("%d", now-from)
					}
					return nil
				})
			}
			answered := func() int64 { return int64(c.answers.Load()) }
			more("answers", answered)
			t.Run("and cuts", func(t *testing.T) {
				putObject(t, l, row.file, row.text)
				more("packets refused", func() int64 {
					return int64(dropped(t, node, "", "policy_denied"))
				})
				answers := answered()
				more("more packets sent", func() int64 { return int64(c.sent.Load()) })
				if now := answered(); now != answers {
					t.Errorf("%d answers came after that", now-answers)
				}
			})
			more("answers again", answered)
		})
	}
}

// neverOpen: no change from one object that demands STRICT to another, no mistake and no restart of
// the agent lets a packet in.
func neverOpen(t *testing.T, l *lab.Lab) {
	policies := matrix{lab: l}
	putObject(t, l, "exempt.yaml", exemptOther)
	putObject(t, l, "peers.yaml", strictShop)
	policies.holds(t, []string{"other web"})
	never := policies.never(t, "other web")
	path := filepath.Join(l.ObjectsDir(), "peers.yaml")
	for _, text := range []string{strictShop + "---\n" + strictWeb,
		strings.Replace(strictWeb, "STRICT", "STRIKT", 1), "apiVersion: security.istio.io/v1\nkind: [\n",
		strictWeb, strictShop} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		soon()
	}
	restartAll(t, l)
	policies.holds(t, []string{"other web"})
	never()
}
