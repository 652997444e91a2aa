package lab

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weft.dev/weft/api/v1alpha1"
)

// small is a valid lab that tests break in one place.
const small = `name: t
nodes:
  - name: a
    addresses: [192.0.2.1/24, 2001:db8::1/64]
    podCIDRs: [10.77.1.0/24, "fd77:1::/64"]
  - name: b
    addresses: [192.0.2.2/24, 2001:db8::2/64]
    podCIDRs: [10.77.2.0/24]
wires:
  - name: w0
    nodes: [a, b]
pods:
  - name: p
    node: a
`

func TestExampleIsEmbedded(t *testing.T) {
	example, err := os.ReadFile("../../examples/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(example, defaultYAML) {
		t.Fatal("examples/lab.yaml and internal/lab/lab.yaml differ: copy one over the other")
	}
	if s := Default(); len(s.Nodes) != 2 || len(s.Pods) != 4 {
		t.Fatalf("default lab has %d nodes and %d pods", len(s.Nodes), len(s.Pods))
	}
}

func TestParse(t *testing.T) {
	s, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	want := PodSpec{Name: "p", Node: "a", Namespace: "default", ServiceAccount: "default"}
	if diff := cmp.Diff(want, s.Pods[0], cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	if s.Wires[0].MTU != DefaultMTU || !s.Wires[0].offload() {
		t.Errorf("wire defaults: %+v", s.Wires[0])
	}
	if got := s.clone(); !bytes.Equal(got.YAML(), s.YAML()) {
		t.Errorf("a Spec changes by being written and read:\n%s\n%s", s.YAML(), got.YAML())
	}
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("n", 39)
	tests := []struct {
		name, old, new string // small with old replaced by new
		want           string
	}{
		{"unknown key", "podCIDRs: [10.77.2.0/24]", "podCIDR: [10.77.2.0/24]",
			`lab.yaml:8: nodes[1].podCIDR: unknown key: did you mean "podCIDRs"?`},
		{"unknown top key", "name: t\n", "name: t\ncolour: red\n",
			`lab.yaml:2: colour: unknown key: known here are name, encryption, sysctls, etcd, agent, nodes, wires, pods`},
		{"key twice", "name: t\n", "name: t\nname: u\n",
			`lab.yaml:2: name: is given twice, first on line 1`},
		{"no name", "name: t\n", "", `lab.yaml:1: name: is missing: give the lab a name`},
		{"bad name", "name: t\n", "name: T_\n", `lab.yaml:1: name: "T_" is not a name`},
		{"long name", "name: b\n", "name: " + long + "\n",
			`lab.yaml:6: nodes[1].name: lab and node name together have 40 characters, at most 39 fit`},
		{"reserved node", "name: b\n", "name: bin\n",
			`nodes[1].name: "bin" is a directory of the lab itself`},
		{"node twice", "name: b\n", "name: a\n", `lab.yaml:6: nodes[1].name: "a" names two nodes`},
		{"bad address", "192.0.2.1/24", "192.0.2.1",
			`lab.yaml:4: nodes[0].addresses[0]: "192.0.2.1" is not an address range or an address with prefix length, such as 10.1.0.0/24`},
		{"network address", "192.0.2.1/24", "192.0.2.0/24",
			`lab.yaml:4: nodes[0].addresses[0]: 192.0.2.0/24 is the network's own address`},
		{"multicast", "192.0.2.1/24", "224.0.0.1/24",
			`nodes[0].addresses[0]: 224.0.0.1 cannot be an interface's address`},
		{"address twice", "192.0.2.2/24", "192.0.2.1/24",
			`lab.yaml:7: nodes[1].addresses[0]: 192.0.2.1 is already given by nodes[0].addresses[0]`},
		{"two of a family", "2001:db8::2/64", "192.0.2.3/24",
			`nodes[1].addresses[1]: is the node's second address of its family`},
		{"other subnet", "192.0.2.2/24", "198.51.100.2/24",
			`nodes[1].addresses[0]: 198.51.100.2/24 is outside 192.0.2.0/24, the subnet of wire w0`},
		{"ranges overlap", "[10.77.2.0/24]", "[10.77.0.0/16]",
			`lab.yaml:8: nodes[1].podCIDRs[0]: 10.77.0.0/16 overlaps nodes[0].podCIDRs[0] (10.77.1.0/24)`},
		{"range on the wire", "[10.77.2.0/24]", "[192.0.2.128/25]",
			`nodes[1].podCIDRs[0]: 192.0.2.128/25 overlaps the wire's subnet`},
		{"range with host bits", "[10.77.2.0/24]", "[10.77.2.1/24]",
			`10.77.2.1/24 has bits set after its prefix length: write 10.77.2.0/24`},
		{"wire's unknown node", "nodes: [a, b]", "nodes: [a, b, c]",
			`lab.yaml:11: wires[0].nodes[2]: "c" is no node of this lab: nodes are a, b`},
		{"node on no wire", "nodes: [a, b]", "nodes: [a]",
			`lab.yaml:6: nodes[1]: "b" is on no wire`},
		{"long wire name", "name: w0", "name: w0123456789abcdef",
			`wires[0].name: "w0123456789abcdef" is not an interface name`},
		{"wire named like ours", "name: w0", "name: weft0", `wires[0].name: "weft0" is taken`},
		{"mtu too small", "nodes: [a, b]", "nodes: [a, b]\n    mtu: 576",
			`lab.yaml:12: wires[0].mtu: is 576: use 1280 to 65535`},
		{"mtu of words", "nodes: [a, b]", "nodes: [a, b]\n    mtu: big",
			`lab.yaml:12: wires[0].mtu: is the text "big": want a whole number`},
		{"offload of words", "nodes: [a, b]", "nodes: [a, b]\n    offload: maybe",
			`lab.yaml:12: wires[0].offload: is the text "maybe": want true or false`},
		{"pod's unknown node", "    node: a\n", "    node: z\n",
			`lab.yaml:14: pods[0].node: "z" is no node of this lab`},
		{"pod named like a node", "name: p\n", "name: a\n",
			`pods[0].name: "a" is also a node's name`},
		{"pod's address elsewhere", "    node: a\n", "    node: a\n    addresses: [10.77.2.9]\n",
			`lab.yaml:15: pods[0].addresses[0]: 10.77.2.9 is outside node a's podCIDRs`},
		{"pod's address with length", "    node: a\n",
			"    node: a\n    addresses: [10.77.1.9/24]\n",
			`pods[0].addresses[0]: "10.77.1.9/24" is not an IP address`},
		{"unknown mode", "    podCIDRs: [10.77.2.0/24]", "    mode: warp",
			`nodes[1].mode: "warp" is not a mode: use auto, xdp, tc, stack`},
		{"bare with mode", "    podCIDRs: [10.77.2.0/24]", "    mode: tc\n    agent: false",
			`nodes[1].mode: is for nodes with an agent`},
		{"unknown sysctls", "name: t\n", "name: t\nsysctls: debian\n",
			`lab.yaml:2: sysctls: "debian" is not known: use distribution or kernel`},
		{"unknown datapath", "    node: a\n", "    node: a\n    datapath: tc\n",
			`lab.yaml:15: pods[0].datapath: "tc" is no datapath to ask for: use xdp, or leave it out`},
		{"config of ours", "    podCIDRs: [10.77.2.0/24]", "    config: {node: x}",
			`nodes[1].config.node: is set by the lab`},
		{"list for mapping", "name: t\n", "name: t\nagent: [1]\n",
			`lab.yaml:2: agent: is a list: want keys with values`},
		{"agent key twice", "name: t\n", "name: t\nagent: {mtu: 1, mtu: 2}\n",
			`lab.yaml:2: agent: want keys with values: `},
		{"address for no node of the wire", "nodes: [a, b]",
			"nodes: [a, b]\n    addresses:\n      c: [10.0.0.1/8]",
			`lab.yaml:13: wires[0].addresses[c]: is not on this wire`},
		{"two documents", "name: t\n", "name: t\n---\n",
			`lab.yaml:3: holds more than one YAML document`},
		{"not YAML", "name: t\n", "name: [\n", `lab.yaml:1: not valid YAML: `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(small, tt.old) {
				t.Fatalf("the test replaces %q, which is not there", tt.old)
			}
			_, err := Parse([]byte(strings.Replace(small, tt.old, tt.new, 1)))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestPodDatapath: a pod's path becomes its object's annotation, and there is none on a bare node.
func TestPodDatapath(t *testing.T) {
	s, err := Parse([]byte(small + "    datapath: xdp\n"))
	if err != nil {
		t.Fatal(err)
	}
	objects := podObjects(s.clone())
	if len(objects) != 1 ||
		objects[0].(*v1alpha1.Pod).Metadata.Annotations[v1alpha1.DatapathAnnotation] != "xdp" {
		t.Errorf("%+v", objects)
	}
	bare := strings.Replace(small, "    addresses: [192.0.2.1/24",
		"    agent: false\n    addresses: [192.0.2.1/24", 1)
	if _, err := Parse([]byte(bare + "    datapath: xdp\n")); err == nil ||
		!strings.Contains(err.Error(),
			"lab.yaml:16: pods[0].datapath: is for pods of nodes with an agent") {
		t.Error(err)
	}
}

func TestParseTellsAllMistakesAtOnce(t *testing.T) {
	text := strings.NewReplacer("name: p\n", "name: P\n", "name: w0", "name: lo").Replace(small)
	_, err := Parse([]byte(text))
	if err == nil || !strings.Contains(err.Error(), "wires[0].name") ||
		!strings.Contains(err.Error(), "pods[0].name") {
		t.Errorf("got %v", err)
	}
	if _, err := Parse(nil); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("empty file: got %v", err)
	}
}

func TestNamespacesMayNotCollide(t *testing.T) {
	text := strings.NewReplacer("name: b\n", "name: a-p\n", "[a, b]", "[a, a-p]").Replace(small)
	_, err := Parse([]byte(text))
	if err == nil ||
		!strings.Contains(err.Error(),
			"would share the network namespace weft-t-a-p with nodes[1].name") {
		t.Errorf("got %v", err)
	}
}

func TestAgentConfigMerges(t *testing.T) {
	s, err := Parse([]byte(strings.Replace(small, "name: t\n",
		"name: t\nagent: {flows: {maxEntries: 2048, log: /x}, mtu: 1400}\n", 1)))
	if err != nil {
		t.Fatal(err)
	}
	s.Nodes[0].Mode = "tc"
	s.Nodes[0].Config = map[string]any{"flows": map[string]any{"maxEntries": 4096},
		"metrics": map[string]any{"listen": ""}}
	got, err := agentConfig(s.clone(), s.Nodes[0])
	if err != nil {
		t.Fatal(err)
	}
	want := `flows:
    log: /x
    maxEntries: 4096
instance: t-a
keys:
    certificates:
        bundle: /run/weft-lab/t/a/keys/ca.crt
        cert: /run/weft-lab/t/a/keys/node.crt
        key: /run/weft-lab/t/a/keys/node.key
    cluster: t
    kek: file:///run/weft-lab/t/a/keys/kek
    trustDomain: weft.lab
log:
    level: info
metrics:
    listen: ""
mode: tc
mtu: 1400
node: a
paths:
    state: /run/weft-lab/t/a/state
store:
    dir: /run/weft-lab/t/objects
uplinks:
    - w0
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if err := checkConfigs(s); err != nil {
		t.Errorf("the agent's own check refuses it: %v", err)
	}
	s.Nodes[0].Config["colour"] = "red"
	if err := checkConfigs(s); err == nil {
		t.Error("an unknown agent key passed")
	}
}

// TestNodeObjects: a machine without an agent is a node to the agents only if they are to route
// pods to it.
func TestNodeObjects(t *testing.T) {
	bare := false
	ranges := []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}
	s := &Spec{Nodes: []NodeSpec{{Name: "a", PodCIDRs: ranges}, {Name: "b"},
		{Name: "routed", Agent: &bare, PodCIDRs: ranges}, {Name: "outside", Agent: &bare}}}
	var names []string
	for _, doc := range nodeObjects(s) {
		names = append(names, doc.(*v1alpha1.Node).Metadata.Name)
	}
	if want := []string{"a", "b", "routed"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
}

func TestEncryptionOff(t *testing.T) {
	s, err := Parse([]byte(strings.Replace(small, "name: t\n", "name: t\nencryption: off\n", 1)))
	if err != nil {
		t.Fatal(err)
	}
	s = s.clone() // as it is read back from a running lab's record
	got, err := agentConfig(s, s.Nodes[0])
	if err != nil || s.Encrypted() ||
		!strings.Contains(string(got), "encryption:\n    mode: \"off\"\n") ||
		strings.Contains(string(got), "keys:") {
		t.Errorf("%v\n%s", err, got)
	}
	if err := checkConfigs(s); err != nil {
		t.Error(err)
	}
	_, err = Parse([]byte(strings.Replace(small, "name: t\n", "name: t\nencryption: plain\n", 1)))
	if err == nil ||
		!strings.Contains(err.Error(), `encryption: "plain" is not known: use strict or off`) {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(defaultYAML)
	f.Add([]byte(small))
	f.Add([]byte("name: &a t\nnodes: [*a]\nwires: {}\npods: ~\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			return
		}
		// What is accepted must survive the record of a running lab and be refused nowhere else.
		again, err := unmarshalSpec(s.YAML())
		if err != nil {
			t.Fatalf("accepted, but not readable from its record: %v\n%s", err, s.YAML())
		}
		if err := again.Validate(); err != nil {
			t.Fatalf("accepted, but refused from its record: %v", err)
		}
	})
}
