package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weft.dev/weft/internal/config/strictyaml"
)

var equalNetip = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func TestExampleIsTheDefault(t *testing.T) {
	got, err := Parse("example.yaml", Example())
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Node = "node-1"
	if diff := cmp.Diff(want, got, equalNetip, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("example and defaults differ (-default +example):\n%s", diff)
	}
}

func TestExampleHasEveryKey(t *testing.T) {
	// Every key is there when taking its line away leaves a key less: parse the
	// example as a document and look each key's line up.
	docs, errs := strictyaml.Split("example.yaml", Example())
	if len(docs) != 1 || errs != nil {
		t.Fatalf("got %d documents, errors %v", len(docs), errs)
	}
	if errs := docs[0].Decode(Default()); errs != nil {
		t.Fatal(errs)
	}
	lines := strings.Split(string(Example()), "\n")
	for _, key := range strictyaml.Keys(&Config{}) {
		last := key[strings.LastIndexByte(key, '.')+1:]
		if line := lines[docs[0].Line(key)-1]; !strings.HasPrefix(strings.TrimSpace(line), last+":") {
			t.Errorf("%s is not in the example (nearest line %q)", key, line)
		}
	}
}

func TestParseFull(t *testing.T) {
	got, err := Parse("agent.yaml", []byte(`
node: a.example
instance: blue-1
mode: tc
xdp: {generic: true}
uplinks: [eth0, bond0.100]
mtu: 9000
store: {dir: /srv/objects}
ipam: {ranges: [10.1.0.0/24, "fd00:1::/64"]}
masquerade: {enabled: true, except: [10.0.0.0/8, 0.0.0.0/0]}
encryption: {mode: off, engine: kmod, allowTableAES: true, port: 4501, lanes: 64}
keys:
  listen: "[::1]:4552"
  trustDomain: td.example
  cluster: blue
  kek: awskms://alias/weft?region=eu-west-1
  maxAge: 1h30m
  hardTTL: 3h
  extendTTL: 90m
  drain: 0s
  maxPackets: 1024
  requirePostQuantum: true
  audit: {file: /var/log/keys.jsonl, maxSize: 1, keep: 2}
  certificates: {source: spire, spireSocket: "tcp://127.0.0.1:8081", cert: relative}
flows: {maxEntries: 0x10000, eventsPerSecond: 0, log: /var/log/flows.json}
metrics: {listen: "[::1]:0"}
paths: {run: /r, state: /s, bpf: /b}
log: {level: debug, format: json}
policy: {istio: {rootNamespace: mesh}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Node: "a.example", Instance: "blue-1", Mode: ModeTC, XDP: XDP{Generic: true},
		Uplinks: []string{"eth0", "bond0.100"}, MTU: 9000, Store: Store{Dir: "/srv/objects", Etcd: Etcd{Prefix: "/weft"}},
		IPAM:       IPAM{Ranges: prefixes("10.1.0.0/24", "fd00:1::/64")},
		Masquerade: Masquerade{Enabled: true, Except: prefixes("10.0.0.0/8", "0.0.0.0/0")},
		Policy:     Policy{Istio: Istio{RootNamespace: "mesh"}},
		Encryption: Encryption{Mode: EncryptionOff, Engine: EngineKmod, AllowTableAES: true, Port: 4501, Lanes: 64},
		Keys: Keys{
			Listen: "[::1]:4552", TrustDomain: "td.example", Cluster: "blue", KEK: "awskms://alias/weft?region=eu-west-1",
			MaxAge: Duration(90 * time.Minute), HardTTL: Duration(3 * time.Hour), ExtendTTL: Duration(90 * time.Minute), MaxPackets: 1024, RequirePostQuantum: true,
			Audit: Audit{File: "/var/log/keys.jsonl", MaxSize: 1, Keep: 2},
			Certificates: Certificates{
				Source: CertificatesSPIRE, SPIRESocket: "tcp://127.0.0.1:8081",
				Cert: "relative", Key: "/etc/weft/node.key", Bundle: "/etc/weft/ca.crt",
			},
		},
		Flows:   Flows{MaxEntries: 65536, Log: "/var/log/flows.json"},
		Metrics: Metrics{Listen: "[::1]:0"},
		Paths:   Paths{Run: "/r", State: "/s", BPF: "/b"},
		Log:     Log{Level: "debug", Format: "json"},
	}
	if diff := cmp.Diff(want, got, equalNetip); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]string{
		got.RunDir(): "/r/blue-1", got.StateDir(): "/s/blue-1", got.BPFDir(): "/b/blue-1", got.Socket(): "/r/blue-1/agent.sock",
	} {
		if path != want {
			t.Errorf("path %s, want %s", path, want)
		}
	}
	if got.Instance = ""; got.Socket() != "/r/agent.sock" {
		t.Errorf("default instance's socket is %s", got.Socket())
	}
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("x", 100)
	tests := []struct {
		name, yaml string
		want       []string // each error, by its beginning
	}{
		{"empty", "", []string{"f: node: is missing"}},
		{"only comments", "# nothing\n", []string{"f: node: is missing"}},
		{"null everywhere", "node:\nlog:\nuplinks: ~\n", []string{`f:1: node: is missing`}},
		{"unknown key, near", "node: a\nmodus: tc\n", []string{`f:2: modus: unknown key: did you mean "mode"?`}},
		{"unknown key, inside", "node: a\nxdp:\n  genric: true\n", []string{`f:3: xdp.genric: unknown key: did you mean "generic"?`}},
		{"unknown key, elsewhere", "node: a\ngeneric: true\n", []string{`f:2: generic: unknown key: it belongs to another place, xdp.generic`}},
		{"unknown key, far", "node: a\nlog:\n  colours: true\n", []string{`f:3: log.colours: unknown key: known under log are level, format`}},
		{"repeated key", "node: a\nmtu: 1500\nnode: b\n", []string{"f:3: node: is given twice, first on line 1"}},
		{"merge key", "node: a\nlog: &l {level: info}\npaths: {<<: *l}\n", []string{"f:3: paths: merge keys"}},
		{"key is a list", "node: a\n[a, b]: c\n", []string{"f:2: has a list for a key"}},
		{"two documents", "node: a\n---\nnode: b\n", []string{"f:3: a second document begins here"}},
		{"list at the top", "- node: a\n", []string{"f:1: is a list: want keys with values, such as node", "f:1: node: is missing"}},
		{"syntax", "node: a\nxdp: {generic: true\nmtu: 1\n", []string{"f:2: not valid YAML: did not find expected ',' or '}'"}},
		{"syntax, indentation", "node: a\nlog:\n  level: info\n format: text\n", []string{"f:4: not valid YAML: did not find expected key"}},
		{"syntax, quote", "node: a\nmode: \"tc\n", []string{"f:2: not valid YAML: found unexpected end of stream"}},
		{"syntax, tab", "node: a\nlog:\n\tlevel: info\n", []string{"f:3: not valid YAML: found character that cannot start any token"}},
		{"syntax, anchor", "node: *a\n", []string{"f:1: not valid YAML: unknown anchor 'a' referenced"}},
		{"not utf-8", "node: a\nmode: \xff\n", []string{"f:2: not UTF-8 text"}},
		{"long lists", "node: a\nuplinks: [" + strings.Repeat("e,", 300) + "]\nipam: {ranges: [" + strings.Repeat("10.0.0.0/8,", 300) + "]}\nmasquerade: {except: [" + strings.Repeat("10.0.0.0/8,", 300) + "]}\n", []string{
			"f:2: uplinks: are 300 interfaces: want at most 256", "f:3: ipam.ranges: are 300 ranges: want at most one per family", "f:4: masquerade.except: are 300 ranges: want at most 256"}},
		{"huge", "node: a\n#" + strings.Repeat("x", strictyaml.MaxSize), []string{"f: larger than 1048576 bytes"}},
		{"text for a boolean", "node: a\nxdp: {generic: \"true\"}\n", []string{`f:2: xdp.generic: is the text "true": want true or false`}},
		{"yes for a boolean", "node: a\nxdp: {generic: yes}\n", []string{`f:2: xdp.generic: is the text "yes": want true or false`}},
		{"number for a text", "node: 17\n", []string{`f:1: node: is the number "17": want a text; in quotes it is one: "17"`}},
		{"text for a number", "node: a\nmtu: big\n", []string{`f:2: mtu: is the text "big": want a whole number`}},
		{"fraction for a number", "node: a\nmtu: 1.5\n", []string{`f:2: mtu: is the number "1.5": want a whole number`}},
		{"negative flows", "node: a\nflows: {maxEntries: -1}\n", []string{`f:2: flows.maxEntries: "-1" is out of range: want a whole number from 0 to 4294967295`}},
		{"too many flows", "node: a\nflows: {maxEntries: 4294967296}\n", []string{`f:2: flows.maxEntries: "4294967296" is out of range`}},
		{"flows bounds", "node: a\nflows:\n  maxEntries: 3\n  eventsPerSecond: 1000001\n  log: x\n", []string{
			"f:3: flows.maxEntries: is 3: want 1024 to", "f:4: flows.eventsPerSecond: is 1000001", "f:5: flows.log: is \"x\": want an absolute path"}},
		{"root namespace", "node: a\npolicy: {istio: {rootNamespace: A}}\n", []string{`f:2: policy.istio.rootNamespace: "A" is no`}},
		{"text for a mapping", "node: a\nlog: debug\n", []string{`f:2: log: is the text "debug": want keys with values, such as level: …`}},
		{"text for a list", "node: a\nuplinks: eth0\n", []string{`f:2: uplinks: is the text "eth0": want a list`}},
		{"empty list entry", "node: a\nuplinks:\n- eth0\n-\n", []string{`f:4: uplinks[1]: is empty: give a text`}},
		{"bad names", "node: A_b\ninstance: Blue\nuplinks: [a/b, sixteen-letters-, eth0, eth0]\n", []string{
			`f:1: node: "A_b" is not a name`, `f:2: instance: is "Blue"`, `f:3: uplinks[0]: is "a/b"`,
			`f:3: uplinks[1]: is "sixteen-letters-": want the name of an interface, at most 15 bytes`, `f:3: uplinks[3]: names "eth0" a second time`}},
		{"instance in the way", "node: a\ninstance: endpoints\n", []string{`f:2: instance: is "endpoints", a name that the default instance uses`}},
		{"instance too long", "node: a\ninstance: " + strings.Repeat("a", 41) + "\n", []string{`f:2: instance: is "aaaa`}},
		{"mode", "node: a\nmode: xpd\n", []string{`f:2: mode: is "xpd": want auto, xdp, tc or stack (did you mean "xdp"?)`}},
		{"mode empty", "node: a\nmode: \"\"\n", []string{`f:2: mode: is "": want auto, xdp, tc or stack`}},
		{"mtu", "node: a\nmtu: 1279\n", []string{`f:2: mtu: is 1279: want 1280 to 65535`}},
		{"bad ranges", "node: a\nipam:\n  ranges:\n  - 10.1.0.1/24\n  - fd00::/129\n  - 10.2.0.0/24\n  - 10.3.0.0/24\n  - fd00::/127\n", []string{
			`f:4: ipam.ranges[0]: 10.1.0.1/24 has bits set after its first 24: write 10.1.0.0/24`,
			`f:5: ipam.ranges[1]: "fd00::/129" is not an address range`,
			`f:6: ipam.ranges[2]: 10.2.0.0/24 is of the same family as ipam.ranges[0] 10.1.0.1/24`,
			`f:7: ipam.ranges[3]: 10.3.0.0/24 is of the same family as ipam.ranges[0] 10.1.0.1/24`,
			`f:8: ipam.ranges[4]: fd00::/127 is too small`}},
		{"unusable cluster ranges", "node: a\nclusterCIDRs: [10.77.1.0/16, 0.0.0.0/0, 10.77.0.0/16, 10.77.2.0/24, \"fd77::/32\", 10.0.0.0/8]\n", []string{
			`f:2: clusterCIDRs[0]: 10.77.1.0/16 has bits set`, `f:2: clusterCIDRs[1]: 0.0.0.0/0 is every address`,
			`f:2: clusterCIDRs[2]: 10.77.0.0/16 overlaps clusterCIDRs[0] 10.77.1.0/16`, `f:2: clusterCIDRs[3]: 10.77.2.0/24 overlaps`,
			`f:2: clusterCIDRs[5]: 10.0.0.0/8 overlaps`}},
		{"second range of a family", "node: a\nipam: {ranges: [10.2.0.0/24, 10.2.0.0/25]}\n", []string{`f:2: ipam.ranges[1]: 10.2.0.0/25 is of the same family`}},
		{"unusable ranges", "node: a\nipam: {ranges: [0.0.0.0/0, \"ff00::/8\"]}\n", []string{`f:2: ipam.ranges[0]: 0.0.0.0/0 is every address`, `f:2: ipam.ranges[1]: ff00::/8 overlaps ff00::/8`}},
		{"bad exceptions", "node: a\nmasquerade: {except: [10.0.0.1/8, 10.0.0.0/8, 10.0.0.0/8, \"\"]}\n", []string{
			`f:2: masquerade.except[0]: 10.0.0.1/8 has bits set`, `f:2: masquerade.except[2]: 10.0.0.0/8 is there a second time`, `f:2: masquerade.except[3]: "" is not an address range`}},
		{"listen", "node: a\nmetrics: {listen: 9551}\n", []string{`f:2: metrics.listen: is the number "9551": want a text`}},
		{"listen without address", "node: a\nmetrics: {listen: \":9551\"}\n", []string{`f:2: metrics.listen: is ":9551", without an address: write 0.0.0.0:9551`}},
		{"listen on a name", "node: a\nmetrics: {listen: \"host:9551\"}\n", []string{`f:2: metrics.listen: is "host:9551", where "host" is no IP address`}},
		{"listen on no port", "node: a\nmetrics: {listen: \"[::1]:http\"}\n", []string{`f:2: metrics.listen: is "[::1]:http", where "http" is no port`}},
		{"listen without port", "node: a\nmetrics: {listen: \"127.0.0.1\"}\n", []string{`f:2: metrics.listen: is "127.0.0.1": want ADDRESS:PORT`}},
		{"paths", "node: a\nstore: {dir: objects}\npaths: {run: ./r, state: \"\", bpf: /}\n", []string{
			`f:2: store.dir: is "objects": want an absolute path`, `f:3: paths.bpf: is "/": want a directory below`, `f:3: paths.run: is "./r"`, `f:3: paths.state: is empty`}},
		{"socket too long", "node: a\npaths: {run: /" + long + "}\n", []string{`f:2: paths.run: is too long: the socket /` + long + `/agent.sock would have a path of 112 bytes, the kernel takes 107`}},
		{"log", "node: a\nlog: {level: warning, format: xml}\n", []string{`f:2: log.format: is "xml": want text or json`, `f:2: log.level: is "warning": want debug, info, warn or error (did you mean "warn"?)`}},
		{"encryption", "node: a\nencryption: {mode: srict, engine: xfrm, port: 0, lanes: 65}\n", []string{
			`f:2: encryption.engine: is "xfrm": want auto, bpf, kmod or user`, "f:2: encryption.lanes: is 65: want 1 to 64", `f:2: encryption.mode: is "srict": want strict or off (did you mean "strict"?)`,
			"f:2: encryption.port: is 0: want a UDP port"}},
		{"keys", "node: a\nkeys:\n  listen: host:1\n  trustDomain: A/b\n  cluster: a.b\n  kek: \"vault://u:p@x\"\n  maxAge: 1m\n  hardTTL: 90s\n  drain: 2m\n  maxPackets: 1\n", []string{
			`f:3: keys.listen: is "host:1", where "host" is no IP address`, `f:4: keys.trustDomain: is "A/b"`, `f:5: keys.cluster: "a.b" is not a name`,
			`f:6: keys.kek: has the scheme "vault": want file:///`, "f:8: keys.hardTTL: is 1m30s: want at least twice keys.maxAge (1m)",
			"f:9: keys.drain: is 2m: want 0s to keys.maxAge (1m)", "f:10: keys.maxPackets: is 1: want 1024 to"}},
		{"keys' times", "node: a\nkeys: {maxAge: 30, hardTTL: long, drain: -1s, extendTTL: -1s}\n", []string{
			`f:2: keys.drain: is -1s: want 0s to`, `f:2: keys.extendTTL: is -1s: want 0s, which never extends, to keys.hardTTL`,
			`f:2: keys.hardTTL: "long" is not a time span, such as 30s, 24h or 1h30m`, `f:2: keys.maxAge: "30" is not a time span`}},
		{"extended for ever", "node: a\nkeys: {extendTTL: 72h1m}\n", []string{`f:2: keys.extendTTL: is 72h1m: want 0s, which never extends, to keys.hardTTL (72h)`}},
		{"secret in the KEK's URL", "node: a\nkeys: {kek: \"hashivault://me:token@key\"}\n", []string{`f:2: keys.kek: holds a user or password`}},
		{"KEK's file", "node: a\nkeys: {kek: \"file://etc/kek\"}\n", []string{`f:2: keys.kek: is "file://etc/kek": want file:// and an absolute path`}},
		{"certificates", "node: a\nkeys: {certificates: {source: files, cert: a, key: /, bundle: \"\"}}\n", []string{
			`f:2: keys.certificates.bundle: is empty`, `f:2: keys.certificates.cert: is "a": want an absolute path`, `f:2: keys.certificates.key: is "/"`}},
		{"spire", "node: a\nkeys: {certificates: {source: spire, spireSocket: /run/x}}\n", []string{`f:2: keys.certificates.spireSocket: is "/run/x": want unix://`}},
		{"audit", "node: a\nkeys: {audit: {file: x, maxSize: 0, keep: 0}}\n", []string{
			`f:2: keys.audit.file: is "x": want an absolute path`, "f:2: keys.audit.keep: is 0: want 1 to 1000", "f:2: keys.audit.maxSize: is 0: want 1 to 65536"}},
		{"source", "node: a\nkeys: {certificates: {source: acme}}\n", []string{`f:2: keys.certificates.source: is "acme": want files or spire`}},
		{"long value", "node: " + strings.Repeat("A", 300) + "\n", []string{`f:1: node: "` + strings.Repeat("A", 80) + `…" is too long`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse("f", []byte(tt.yaml))
			if err == nil {
				t.Fatalf("taken: %+v", c)
			}
			var one Error
			if !errors.As(err, &one) || one.File != "f" {
				t.Errorf("no Error of file f in %#v", err)
			}
			got := strings.Split(err.Error(), "\n")
			for i := range max(len(got), len(tt.want)) {
				if i >= len(got) || i >= len(tt.want) || !strings.HasPrefix(got[i], tt.want[i]) {
					t.Fatalf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
				}
			}
		})
	}
}

func TestErrorsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("node: a\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "key%d: 1\n", i)
	}
	_, err := Parse("f", []byte(b.String()))
	if n := strings.Count(err.Error(), "\n"); n > 60 || !strings.Contains(err.Error(), "more errors are not shown") {
		t.Errorf("%d lines of errors:\n%s", n, err)
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.yaml")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "weft config example") {
		t.Errorf("missing file: %v", err)
	}
	if _, err := Load(filepath.Dir(path)); err == nil {
		t.Error("a directory was taken for a file")
	}
	if err := os.WriteFile(path, Example(), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(path); err != nil || c.Node != "node-1" {
		t.Errorf("got %+v, %v", c, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Example())
	for _, s := range []string{
		"", "node: a\nuplinks: [eth0]\n", "- 1", "a: &a [*a]", "node: &n a\ninstance: *n\n", "? [x]\n: y", "---\n---\nnode: a\n...\n",
		"node: !!binary aGk=\n", "node: !x a\n", "{node: a, mtu: 0x5dc}", "\ufeffnode: a", "node: a\nmtu: 1_500\n", "node: >-\n  a\n", "%YAML 1.2\n---\nnode: a",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v with error %v", c, err)
		}
		if err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				if !strings.HasPrefix(line, "f:") {
					t.Fatalf("error does not name the file: %q", line)
				}
			}
			return
		}
		if p := c.Validate(); len(p) > 0 {
			t.Fatalf("taken but not valid: %v", p)
		}
	})
}

// TestDocs holds docs/configuration.md to the code: every key with its default is
// in its table, and the example is the one that is printed.
func TestDocs(t *testing.T) {
	raw, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	if !strings.Contains(doc, "```yaml\n"+string(Example())+"```\n") {
		t.Error("the example in docs/configuration.md is not internal/config/example.yaml: copy it there")
	}
	rows := 0
	for _, line := range strings.Split(doc, "\n") {
		if strings.HasPrefix(line, "| `") {
			rows++
		}
	}
	keys := strictyaml.Keys(&Config{})
	if rows != len(keys) {
		t.Errorf("the table has %d rows for %d keys", rows, len(keys))
	}
	for _, key := range keys {
		if want := fmt.Sprintf("| `%s` | %s |", key, defaultText(t, key)); !strings.Contains(doc, want) {
			t.Errorf("docs/configuration.md has no row %q", want)
		}
	}
}

// defaultText is the default of the key as the documentation writes it.
func defaultText(t *testing.T, key string) string {
	t.Helper()
	if key == "node" {
		return "none, required"
	}
	v := reflect.ValueOf(Default()).Elem()
	for part := range strings.SplitSeq(key, ".") {
		v = v.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, part) })
	}
	switch {
	case v.Kind() == reflect.Slice:
		return "`[]`"
	case v.Kind() == reflect.String && v.Len() == 0:
		return "`\"\"`"
	}
	return fmt.Sprintf("`%v`", v.Interface())
}

func TestStore(t *testing.T) {
	for name, row := range map[string]struct {
		yaml, want string
		store      Store
	}{
		"neither":           {"", "", Default().Store},
		"unix":              {"store: {etcd: {endpoints: [unix:///run/etcd.sock]}}", "", Store{Etcd: Etcd{Endpoints: []string{"unix:///run/etcd.sock"}, Prefix: "/weft"}}},
		"loopback":          {"store: {etcd: {endpoints: [http://127.0.0.1:2379, 'http://[::1]:2379'], prefix: /a/b}}", "", Store{Etcd: Etcd{Endpoints: []string{"http://127.0.0.1:2379", "http://[::1]:2379"}, Prefix: "/a/b"}}},
		"both":              {"store:\n  dir: /a\n  etcd: {endpoints: [unix:///run/etcd.sock]}", "agent.yaml:3: store.dir: is given, and so is store.etcd", Store{}},
		"the default, both": {"store: {dir: /etc/weft/objects, etcd: {endpoints: [unix:///run/etcd.sock]}}", "store.dir: is given, and so is store.etcd", Store{}},
		"https without CA":  {"store: {etcd: {endpoints: [https://a:2379]}}", "store.etcd.tls.ca: is empty", Store{}},
		"a key alone":       {"store: {etcd: {endpoints: [https://a:2379], tls: {ca: /ca, key: /key}}}", "store.etcd.tls.cert: is empty", Store{}},
		"cleartext":         {"store: {etcd: {endpoints: [http://10.0.0.1:2379]}}", "store.etcd.endpoints[0]: is \"http://10.0.0.1:2379\": http is for addresses of the loopback", Store{}},
		"a name's port":     {"store: {etcd: {endpoints: [https://a], tls: {ca: /ca}}}", "want https://HOST:PORT", Store{}},
		"a password":        {"store: {etcd: {endpoints: ['https://u:p@a:2379'], tls: {ca: /ca}}}", "want https://HOST:PORT", Store{}},
		"twice":             {"store: {etcd: {endpoints: [unix:///a, unix:///a]}}", "store.etcd.endpoints[1]: names \"unix:///a\" a second time", Store{}},
		"TLS for nobody":    {"store: {etcd: {endpoints: [unix:///a], tls: {ca: /ca}}}", "store.etcd.tls: is given, and no endpoint is https", Store{}},
		"TLS alone":         {"store: {etcd: {tls: {ca: /ca}}}", "store.etcd.endpoints: are missing", Store{}},
		"Kubernetes":        {"store: {kubernetes: {enabled: true}}", "", Store{Etcd: Etcd{Prefix: "/weft"}, Kubernetes: Kubernetes{Enabled: true}}},
		"a kubeconfig":      {"store: {kubernetes: {enabled: true, kubeconfig: /k}}", "", Store{Etcd: Etcd{Prefix: "/weft"}, Kubernetes: Kubernetes{Enabled: true, Kubeconfig: "/k"}}},
		"one for nobody":    {"store: {kubernetes: {kubeconfig: /k}}", "store.kubernetes.enabled: is false, and store.kubernetes.kubeconfig is given", Store{}},
		"a relative one":    {"store: {kubernetes: {enabled: true, kubeconfig: k}}", "store.kubernetes.kubeconfig: ", Store{}},
		"and a directory":   {"store: {dir: /a, kubernetes: {enabled: true}}", "store.kubernetes.enabled: is true, and store.dir or store.etcd is given", Store{}},
		"and etcd":          {"store: {etcd: {endpoints: [unix:///a]}, kubernetes: {enabled: true}}", "store.kubernetes.enabled: is true, and store.dir or store.etcd is given", Store{}},
		"a prefix":          {"store: {etcd: {endpoints: [unix:///a], prefix: weft/}}", "store.etcd.prefix: is \"weft/\"", Store{}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Parse("agent.yaml", []byte("node: a\n"+row.yaml+"\n"))
			if row.want != "" {
				if err == nil || !strings.Contains(err.Error(), row.want) {
					t.Errorf("got %v, want %s", err, row.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(c.Store, row.store) {
				t.Errorf("got %+v, want %+v", c.Store, row.store)
			}
		})
	}
}
