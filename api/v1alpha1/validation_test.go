package v1alpha1

import (
	"net/netip"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	l63, l64 := strings.Repeat("a", 63), strings.Repeat("a", 64)
	tests := []struct {
		s           string
		name, label bool
	}{
		{"a", true, true}, {"node-1", true, true}, {"0", true, true}, {"a.b", true, false},
		{l63, true, true}, {l64, true, false},
		{"", false, false}, {"-a", false, false}, {"a-", false, false}, {"a..b", false, false},
		{".", false, false}, {".a", false, false},
		{"A", false, false}, {"a_b", false, false}, {"a/b", false, false}, {"a b", false, false},
		{"ä", false, false}, {"a\n", false, false},
		{strings.Repeat("a.", 126) + "a", true, false},
		{strings.Repeat("a.", 127) + "a", false, false},
	}
	for _, tt := range tests {
		if got := CheckName(tt.s) == ""; got != tt.name {
			t.Errorf("name %q: %v", tt.s, got)
		}
		if got := CheckLabel(tt.s) == ""; got != tt.label {
			t.Errorf("label %q: %v", tt.s, got)
		}
	}
}

func TestLabels(t *testing.T) {
	for key, want := range map[string]bool{
		"app": true, "App_1.x": true, "example.org/app": true, "": false, "/app": false,
		"example.org/": false, "a/b/c": false,
		"-a": false, "UPPER/a": false, strings.Repeat("a", 64): false,
	} {
		if got := checkLabelKey(key) == ""; got != want {
			t.Errorf("key %q: %v", key, got)
		}
	}
	for value, want := range map[string]bool{"": true, "a": true, "A_b.c-1": true, "-a": false,
		"a b": false, strings.Repeat("a", 64): false} {
		if got := checkLabelValue(value) == ""; got != want {
			t.Errorf("value %q: %v", value, got)
		}
	}
}

func TestAddresses(t *testing.T) {
	for s, want := range map[string]bool{
		"10.0.0.1": true, "192.0.2.1": true, "fd00::1": true, "2001:db8::1": true,
		"0.0.0.0": false, "::": false, "127.0.0.1": false, "::1": false, "224.0.0.1": false,
		"ff02::1":     false,
		"169.254.1.1": false, "fe80::1": false, "255.255.255.255": false, "::ffff:10.0.0.1": false,
		"fd00::1%eth0": false,
	} {
		if got := CheckAddr(netip.MustParseAddr(s)) == ""; got != want {
			t.Errorf("address %s: %v", s, got)
		}
	}
	for s, want := range map[string]bool{
		"10.0.0.0/8": true, "10.1.2.3/32": true, "fd00::/8": true, "2001:db8::1/128": true,
		"0.0.0.0/0": false, "::/0": false, "10.0.0.1/8": false, "fe80::/64": false,
		"224.0.0.0/4": false, "127.0.0.0/8": false,
		"169.254.0.0/16": false, "128.0.0.0/1": false, "::ffff:10.0.0.0/104": false,
	} {
		if got := CheckRange(netip.MustParsePrefix(s)) == ""; got != want {
			t.Errorf("range %s: %v", s, got)
		}
	}
	if CheckAddr(netip.Addr{}) == "" || CheckRange(netip.Prefix{}) == "" {
		t.Error("nothing is taken for an address")
	}
}

// TestAddressesOfPods: a pod and an endpoint have up to sixteen addresses, each once; the error
// names the seventeenth, and a node has one of each family.
func TestAddressesOfPods(t *testing.T) {
	many := func(count int) (out []netip.Addr) {
		for a := netip.MustParseAddr("fd00::1"); len(out) < count; a = a.Next() {
			out = append(out, a)
		}
		return out
	}
	four := netip.MustParseAddr("10.0.0.1")
	for _, tt := range []struct {
		name      string
		addrs     []netip.Addr
		pod, node string
	}{
		{"one of each", []netip.Addr{four, many(1)[0]}, "", ""},
		{"two of a family", many(2), "", "spec.addresses[1]: fd00::2 is a second address of IPv6"},
		{"sixteen of both", append(many(15), four), "", "spec.addresses[1]: "},
		{"seventeen", many(17), "spec.addresses[16]: fd00::11 is address 17: keep at most 16",
			"spec.addresses[1]: "},
		{"seventeen of both", append(many(16), four), "spec.addresses[16]: 10.0.0.1 is address 17",
			"spec.addresses[1]: "},
		{"one twice", []netip.Addr{four, four},
			"spec.addresses[1]: 10.0.0.1 is spec.addresses[0], too", "spec.addresses[1]: "},
		{"a bad one", []netip.Addr{four, {}}, "spec.addresses[1]: is empty",
			"spec.addresses[1]: is empty"},
	} {
		meta := ObjectMeta{Name: "a", Namespace: "b"}
		objects := []struct {
			Object
			want string
		}{
			{&Pod{Metadata: meta, Spec: PodSpec{Addresses: tt.addrs}}, tt.pod},
			{&Endpoint{Metadata: meta, Spec: EndpointSpec{NodeName: "n", Addresses: tt.addrs}},
				tt.pod},
			{&Node{Metadata: ObjectMeta{Name: "a"}, Spec: NodeSpec{Addresses: tt.addrs}}, tt.node},
		}
		for _, o := range objects {
			o.SetDefaults()
			text := ""
			if errs := o.Validate(); len(errs) > 0 {
				text = errs[0].Error()
			}
			if o.want == "" && text != "" || !strings.HasPrefix(text, o.want) {
				t.Errorf("%s, %T: %q, want %q", tt.name, o.Object, text, o.want)
			}
		}
	}
}

func TestNew(t *testing.T) {
	for _, kind := range Kinds() {
		o := New(kind)
		o.SetDefaults()
		if o.Type().Kind != kind || o.Type().APIVersion != VersionOf(kind) {
			t.Errorf("new %s is %+v", kind, o.Type())
		}
		if errs := o.Validate(); len(errs) == 0 ||
			!strings.HasPrefix(errs[0].Error(), "metadata.name: is missing") {
			t.Errorf("%s without a name: %v", kind, errs)
		}
	}
	if New("Gadget") != nil {
		t.Error("made an unknown kind")
	}
}

func TestAnnotationsAreBounded(t *testing.T) {
	p := &Pod{Metadata: ObjectMeta{Name: "p",
		Annotations: map[string]string{"a": strings.Repeat("x", maxAnnotations)}}}
	p.SetDefaults()
	if errs := p.Validate(); len(errs) != 1 || errs[0].Field != "metadata.annotations" {
		t.Errorf("got %v", errs)
	}
}
