package strictyaml

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

type inner struct {
	Flag bool              `yaml:"flag"`
	Tags map[string]string `yaml:"tags"`
}

type outer struct {
	inner  `yaml:",inline"`
	Name   string       `yaml:"name"`
	Port   uint16       `yaml:"port"`
	Offset int8         `yaml:"offset"`
	Addrs  []netip.Addr `yaml:"addrs"`
	Sub    struct {
		Deep inner `yaml:"deep"`
	} `yaml:"sub"`
	Untagged string
}

func decodeOne(t *testing.T, text string) (outer, *Doc, []Error) {
	t.Helper()
	docs, errs := Split("f", []byte(text))
	if len(docs) != 1 || errs != nil {
		t.Fatalf("%d documents, %v", len(docs), errs)
	}
	o := outer{Name: "default"}
	return o, docs[0], docs[0].Decode(&o)
}

func TestDecodeErrors(t *testing.T) {
	tests := []struct{ name, yaml, want string }{
		{"untagged", "Untagged: x\n",
			"f:1: Untagged: unknown key: known here are flag, tags, name, port, offset, addrs, sub"},
		{"port", "port: 65536\n",
			`f:1: port: "65536" is out of range: want a whole number from 0 to 65535`},
		{"offset", "offset: -129\n", `f:1: offset: "-129" is out of range`},
		{"date", "name: 2026-01-02\n",
			`f:1: name: is the date "2026-01-02": want a text; in quotes it is one`},
		{"binary", "name: !!binary aGk=\n", `f:1: name: is "aGk=": want a text`},
		{"own tag", "name: !secret x\n", `f:1: name: is "x": want a text`},
		{"list of mappings", "addrs: [{a: b}]\n",
			"f:1: addrs[0]: is a mapping: want an IP address, such as 10.0.0.1 or fd00::1"},
		{"mapping for a map", "tags: [a]\n", "f:1: tags: is a list: want keys with values"},
		{"map with a list", "tags:\n  a: [b]\n", "f:2: tags[a]: is a list: want a text"},
		{"deep", "sub:\n  deep:\n    flug: true\n",
			`f:3: sub.deep.flug: unknown key: did you mean "flag"?`},
		{"line break in a key", "\"a\\nb\": c\n", `f:1: "a\nb": unknown key`},
		{"alias", "flag: &x text\nsub:\n  deep: *x\n",
			`f:1: flag: is the text "text": want true or false|f:3: sub.deep: is the text "text"`},
		{"cycle", "sub: &s\n  deep: *s\n", "f:2: sub.deep.deep: unknown key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, errs := decodeOne(t, tt.yaml)
			var got []string
			for _, e := range errs {
				got = append(got, e.Error())
			}
			if !slices.EqualFunc(got, strings.Split(tt.want, "|"), strings.HasPrefix) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	docs, _ := Split("f",
		[]byte("flag: True\ntags: {a: '1', b: ~}\nname: null\nport: 0x10\noffset: -1_0\naddrs: [10.0.0.1, '::1']\nsub: {deep: {flag: true}}\n"))
	o := outer{Name: "default"}
	if errs := docs[0].Decode(&o); errs != nil {
		t.Fatal(errs)
	}
	if !o.Flag || o.Tags["a"] != "1" || len(o.Tags) != 2 || o.Name != "default" || o.Port != 16 ||
		o.Offset != -10 ||
		len(o.Addrs) != 2 || !o.Sub.Deep.Flag {
		t.Errorf("got %+v", o)
	}
}

func TestLines(t *testing.T) {
	docs, _ := Split("f",
		[]byte("name: a\n---\n# second\nname: b\nsub:\n  deep:\n    tags:\n      x.y/z: v\naddrs:\n- ::1\n- ::2\n"))
	d := docs[1]
	var o outer
	if errs := d.Decode(&o); errs != nil {
		t.Fatal(errs)
	}
	for field, want := range map[string]int{
		"": 4, "name": 4, "sub.deep": 7, "sub.deep.flag": 7, "sub.deep.tags[x.y/z]": 8,
		"addrs[1]": 11, "addrs[7]": 10, "nowhere": 4,
	} {
		if got := d.Line(field); got != want {
			t.Errorf("line of %q is %d, want %d", field, got, want)
		}
	}
	if d.Text("name") != "b" || d.Text("sub") != "" || d.Text("none") != "" {
		t.Error("wrong texts")
	}
}

func TestSplit(t *testing.T) {
	docs, errs := Split("f",
		[]byte("a: 1\n--- {b: 2}\n---x: 1\n--- |\n text\n---\n# none\n...\n---\nc: ]\n---\nd: \"4\n"))
	// "---x" is a key, so {b: 2} is followed by what cannot follow it.
	if len(docs) != 3 || len(errs) != 3 {
		t.Fatalf("%d documents, errors %v", len(docs), errs)
	}
	for i, want := range []int{3, 10, 12} {
		if errs[i].Line != want {
			t.Errorf("error %v, want line %d", errs[i], want)
		}
	}
	var one Error
	if err := Join(errs); !errors.As(err, &one) || one != errs[0] {
		t.Errorf("first error %v", one)
	}
	if Join(nil) != nil {
		t.Error("an error of nothing")
	}
}

func TestNearest(t *testing.T) {
	known := []string{"mode", "mtu", "node", "uplinks", "eventsPerSecond"}
	for s, want := range map[string]string{
		"modes": "mode", "moed": "mode", "MTU": "mtu", "mut": "mtu", "nod": "node",
		"uplink": "uplinks", "events_per_second": "eventsPerSecond",
		"": "", "x": "", "zzz": "", "listen": "", strings.Repeat("m", 1000): "",
	} {
		if got := Nearest(s, known); got != want {
			t.Errorf("nearest to %q is %q, want %q", s, got, want)
		}
	}
}

func TestCovered(t *testing.T) {
	errs := []Error{{Field: "spec.addresses[1]"}, {Field: "xdp"}, {Field: ""}}
	for field, want := range map[string]bool{
		"spec.addresses[1]": true, "spec.addresses": true, "spec": true, "xdp.generic": true,
		"spec.addresses[10]": false, "spec.addresses[0]": false, "xd": false, "specs": false,
	} {
		if got := Covered(field, errs); got != want {
			t.Errorf("%q covered: %v", field, got)
		}
	}
}
