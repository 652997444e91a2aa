package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// sharedField is one that two layouts have.
type sharedField struct{ from, to, size uint32 }

// copyRoutes takes over the routes of another layout: the fields that both have, by their names. So
// nodes keep their indexes, which the hooks in force go by, and what the cluster's ranges are is
// known before SetNodes says so.
func copyRoutes(from, to *ebpf.Map, spec *ebpf.MapSpec) string {
	fields, err := sharedFields(from, spec.Value)
	if err != nil {
		return "none: " + err.Error()
	}
	copied, key, value := 0, make([]byte, from.KeySize()), make([]byte, from.ValueSize())
	entries := from.Iterate()
	for entries.Next(&key, &value) {
		out := make([]byte, to.ValueSize())
		for _, f := range fields {
			copy(out[f.to:f.to+f.size], value[f.from:f.from+f.size])
		}
		if to.Put(key, out) == nil {
			copied++
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Sprintf("%d, not all: %v", copied, err)
	}
	return fmt.Sprintf("%d, by their fields", copied)
}

// sharedFields finds the fields of a map's values that are in another type, too, under the same
// name and as large.
func sharedFields(m *ebpf.Map, value btf.Type) ([]sharedField, error) {
	is, ok := btf.UnderlyingType(value).(*btf.Struct)
	if !ok {
		return nil, errors.New("the values are no struct")
	}
	handle, err := m.Handle()
	if err != nil {
		return nil, fmt.Errorf("read the layout of before: %w", err)
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		return nil, fmt.Errorf("read the layout of before: %w", err)
	}
	var was *btf.Struct
	if err := types.TypeByName(is.Name, &was); err != nil {
		return nil, fmt.Errorf("read the layout of before: %w", err)
	}
	var out []sharedField
	for _, old := range was.Members {
		for _, now := range is.Members {
			size, err := btf.Sizeof(old.Type)
			if nowSize, nowErr := btf.Sizeof(now.Type); err == nil && nowErr == nil && size == nowSize && old.Name == now.Name && old.BitfieldSize == 0 && now.BitfieldSize == 0 {
				out = append(out, sharedField{old.Offset.Bytes(), now.Offset.Bytes(), uint32(size)})
			}
		}
	}
	return out, nil
}
