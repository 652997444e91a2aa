package identity

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// objects reads YAML as the store does.
func objects(t *testing.T, text string) *store.Snapshot {
	t.Helper()
	decoded, errs := store.Decode("f", []byte(text))
	return store.Assemble(decoded, errs)
}

const shop = `
apiVersion: weft.dev/v1alpha1
kind: Endpoint
metadata: {name: web, namespace: shop, labels: {app: web, tier: front}}
spec: {nodeName: a, addresses: [10.1.0.2, "fd00:1::2"]}
---
apiVersion: weft.dev/v1alpha1
kind: Endpoint
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: b, addresses: [10.2.0.2]}
---
apiVersion: weft.dev/v1alpha1
kind: Endpoint
metadata: {name: probe, namespace: ops, labels: {app: web}}
spec: {nodeName: b, addresses: [10.2.0.3]}
`

func policy(meta, spec string) string {
	return "---\napiVersion: weft.dev/v1alpha1\nkind: EncryptionPolicy\nmetadata: {" + meta +
		"}\nspec: {" + spec + "}\n"
}

func pod(name, value string) string {
	return "---\napiVersion: weft.dev/v1alpha1\nkind: Pod\nmetadata: {name: " + name +
		", namespace: shop, annotations: {ebpf.xdp/encrypt: " + value + "}}\n"
}

func TestPlain(t *testing.T) {
	tests := []struct {
		name, yaml string
		want       string
		errs       []string
	}{
		{"nothing", "", "", nil},
		{"a namespace's pods", policy("name: p, namespace: shop", "selector: {}"),
			"10.1.0.2/32 10.2.0.2/32 fd00:1::2/128", nil},
		{"by labels", policy("name: p, namespace: shop", "selector: {matchLabels: {app: web}}"),
			"10.1.0.2/32 fd00:1::2/128", nil},
		{"all labels must be there",
			policy("name: p, namespace: shop", "selector: {matchLabels: {app: web, tier: back}}"),
			"", nil},
		{"cluster, by labels", policy("name: p", "selector: {matchLabels: {app: web}}"),
			"10.1.0.2/32 10.2.0.3/32 fd00:1::2/128", nil},
		{"cluster, by namespace", policy("name: p", "selector: {namespaces: [ops, other]}"),
			"10.2.0.3/32", nil},
		{"cluster, both",
			policy("name: p", "selector: {namespaces: [ops], matchLabels: {app: db}}"), "", nil},
		{"two policies",
			policy("name: p, namespace: ops", "selector: {}") + policy("name: q, namespace: shop",
				"selector: {matchLabels: {app: db}}"), "10.2.0.2/32 10.2.0.3/32", nil},
		{"ranges", policy("name: p", `cidrs: [10.2.0.0/24, "fd00::/16", 10.2.0.128/25]`),
			"10.2.0.0/24 fd00::/16", nil},
		{"a pod inside a range",
			policy("name: p", "cidrs: [10.2.0.0/24], selector: {namespaces: [ops]}"), "10.2.0.0/24",
			nil},
		{"asks for plain", pod("db", `"false"`), "10.2.0.2/32", nil},
		{"asks to be sealed, selected",
			policy("name: p, namespace: shop", "selector: {}") + pod("db", `"true"`),
			"10.1.0.2/32 fd00:1::2/128", nil},
		{"asks to be sealed, inside a range",
			policy("name: p", "cidrs: [10.2.0.0/29]") + pod("db", `"true"`),
			"10.2.0.0/31 10.2.0.3/32 10.2.0.4/30", nil},
		{"asks in words of its own",
			policy("name: p, namespace: shop", "selector: {}") + pod("db", `"no"`),
			"10.1.0.2/32 fd00:1::2/128",
			[]string{`metadata.annotations[ebpf.xdp/encrypt]: is "no": want "true" or "false"; until then the pod is sealed`}},
		{"not valid: everything by leaving out", policy("name: p", ""), "",
			[]string{"spec: selects nothing"}},
		{"not valid: everything by an empty selector", policy("name: p", "selector: {}"), "",
			[]string{"spec.selector: is empty and would select every pod"}},
		{"not valid: another's namespace",
			policy("name: p, namespace: shop", "selector: {namespaces: [ops]}"), "",
			[]string{"spec.selector.namespaces: a policy of one namespace"}},
		{"not valid: ranges of a namespace",
			policy("name: p, namespace: shop", "selector: {}, cidrs: [10.2.0.0/24]"), "",
			[]string{"spec.cidrs: a policy of one namespace"}},
		{"not valid: no selector", policy("name: p, namespace: shop", ""), "",
			[]string{"spec.selector: is missing"}},
		{"not valid: every address", policy("name: p", "cidrs: [0.0.0.0/0]"), "",
			[]string{"spec.cidrs[0]: 0.0.0.0/0 is every address"}},
		{"not valid: label", policy("name: p", "selector: {matchLabels: {app: -x}}"), "",
			[]string{`spec.selector.matchLabels[app]: "-x" is not a label value`}},
		{"not valid: key", policy("name: p", "cidr: [10.0.0.0/8]"), "",
			[]string{`spec.cidr: unknown key: did you mean "cidrs"?`}},
		{"one bad, one good",
			policy("name: p", "cidrs: [10.0.0.1/8]") + policy("name: q, namespace: ops",
				"selector: {}"), "10.2.0.3/32", []string{"spec.cidrs[0]: 10.0.0.1/8 has bits set"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := objects(t, shop+tt.yaml)
			var got []string
			for _, p := range Plain(s, nil) {
				got = append(got, p.String())
			}
			if text := strings.Join(got, " "); text != tt.want {
				t.Errorf("plain %q, want %q", text, tt.want)
			}
			for i, want := range tt.errs {
				if i >= len(s.Errors) || !strings.Contains(s.Errors[i].Error(), want) {
					t.Errorf("errors %v, want %s", s.Errors, want)
				}
			}
			if len(s.Errors) > 0 && len(tt.errs) == 0 {
				t.Errorf("errors %v", s.Errors)
			}
		})
	}
}

func TestPublishedAnnotation(t *testing.T) {
	for _, tt := range []struct {
		published, declared string
		want                bool
	}{{"false", "", true}, {"false", "true", false}, {"true", "false", false}, {"", "false", true},
		{"true", "", false}, {"false", "-", false}} {
		s := objects(t, shop)
		if tt.published != "" {
			s.Endpoints["shop/db"].Metadata.Annotations = map[string]string{v1alpha1.EncryptAnnotation: tt.published}
		}
		if tt.declared != "" {
			s.Pods["shop/db"] = &v1alpha1.Pod{Metadata: v1alpha1.ObjectMeta{Annotations: map[string]string{v1alpha1.EncryptAnnotation: tt.declared}}}
		}
		if tt.declared == "-" {
			s.Pods["shop/db"].Metadata.Annotations = nil
		}
		if got := len(Plain(s, nil)) > 0; got != tt.want {
			t.Errorf("%+v: plain is %v", tt, got)
		}
	}
}

// TestPlainIsTheSameEverywhere: maps have no order, what is compiled from them has.
func TestPlainIsTheSameEverywhere(t *testing.T) {
	text := shop + policy("name: p",
		`cidrs: [10.0.0.0/8, 192.0.2.0/24, "fd00::/16"]`) + policy("name: q",
		"selector: {namespaces: [ops, shop]}") +
		pod("db", `"true"`) + pod("web", `"true"`)
	first := Plain(objects(t, text), nil)
	for range 50 {
		s := objects(t, text)
		s.Endpoints, s.Pods = maps.Clone(s.Endpoints), maps.Clone(s.Pods)
		if again := Plain(s, nil); !slices.Equal(first, again) {
			t.Fatalf("%v\n%v", first, again)
		}
	}
	// What is cut out is exactly the two pods' addresses.
	for _, addr := range []string{"10.2.0.2", "10.1.0.2", "fd00:1::2"} {
		for _, p := range first {
			if p.Contains(netip.MustParseAddr(addr)) {
				t.Errorf("%s is in %s", addr, p)
			}
		}
	}
	for _, addr := range []string{"10.2.0.3", "10.2.0.1", "10.1.0.3", "10.255.255.255", "10.0.0.0",
		"fd00:1::3", "fd00::", "192.0.2.7"} {
		if !slices.ContainsFunc(first,
			func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(addr)) }) {
			t.Errorf("%s is not plain", addr)
		}
	}
}
