package bpf

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

func structType(name string, fields ...btf.Member) *btf.Struct {
	return &btf.Struct{Name: name, Members: fields}
}

func field(name string, t btf.Type, offset btf.Bits) btf.Member {
	return btf.Member{Name: name, Type: t, Offset: offset}
}

func TestLayoutHash(t *testing.T) {
	u32, u16 := &btf.Int{Name: "unsigned int", Size: 4}, &btf.Int{Name: "unsigned short", Size: 2}
	spec := func(change func(*ebpf.MapSpec)) *ebpf.MapSpec {
		s := &ebpf.MapSpec{Name: "m", Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 10,
			Key:   u32,
			Value: structType("v", field("a", u32, 0), field("b", u16, 32))}
		change(s)
		return s
	}
	base := layoutHash(spec(func(*ebpf.MapSpec) {}))
	for name, c := range map[string]struct {
		change func(*ebpf.MapSpec)
		same   bool
	}{
		"size of the map": {func(s *ebpf.MapSpec) { s.MaxEntries = 20 }, true},
		"name of the type": {func(s *ebpf.MapSpec) { s.Value.(*btf.Struct).Name = "w" },
			true},
		"typedef of a field":     {func(s *ebpf.MapSpec) { s.Key = &btf.Typedef{Name: "__u32", Type: u32} }, true},
		"kind of the map":        {func(s *ebpf.MapSpec) { s.Type = ebpf.LRUHash }, false},
		"flags of the map":       {func(s *ebpf.MapSpec) { s.Flags = 1 }, false},
		"size of the value":      {func(s *ebpf.MapSpec) { s.ValueSize = 16 }, false},
		"name of a field":        {func(s *ebpf.MapSpec) { s.Value.(*btf.Struct).Members[1].Name = "c" }, false},
		"type of a field":        {func(s *ebpf.MapSpec) { s.Value.(*btf.Struct).Members[1].Type = u32 }, false},
		"place of a field":       {func(s *ebpf.MapSpec) { s.Value.(*btf.Struct).Members[1].Offset = 48 }, false},
		"field becomes an array": {func(s *ebpf.MapSpec) { s.Value.(*btf.Struct).Members[1].Type = &btf.Array{Type: u16, Nelems: 1} }, false},
		"length of an array":     {func(s *ebpf.MapSpec) { s.Key = &btf.Array{Type: u16, Nelems: 2} }, false},
		"struct becomes a union": {func(s *ebpf.MapSpec) { s.Value = &btf.Union{Members: s.Value.(*btf.Struct).Members} }, false},
	} {
		if got := layoutHash(spec(c.change)); (got == base) != c.same {
			t.Errorf("%s: same hash %v, want %v", name, got == base, c.same)
		}
	}
	if got, want := pinName(spec(func(*ebpf.MapSpec) {})), "maps-m-"+base+"-10"; got != want {
		t.Errorf("pin name %s, want %s", got, want)
	}
}

// TestEveryObjectAgrees: programs that share a map must have been compiled with one layout.
func TestEveryObjectAgrees(t *testing.T) {
	pins := map[string]string{}
	for _, object := range []string{"from_pod_xdp", "from_wire_xdp", "from_pod_tc", "from_wire_tc",
		"to_pod_tc", "to_wire_tc", "pod_out_tc"} {
		spec, err := LoadSpec(object)
		if err != nil {
			t.Fatal(err)
		}
		for name, ms := range spec.Maps {
			if !strings.HasPrefix(name, "weft_") {
				continue
			}
			if len(name) > 15 {
				t.Errorf("map %s: the kernel cuts names after 15 characters", name)
			}
			if pin := pinName(ms); pins[name] != "" && pins[name] != pin {
				t.Errorf("%s: map %s is %s, elsewhere %s", object, name, pin, pins[name])
			} else {
				pins[name] = pin
			}
		}
	}
	if _, err := LoadSpec("nothing"); err == nil {
		t.Error("an object that is not there: want an error")
	}
}
