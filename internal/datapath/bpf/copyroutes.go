package bpf

import (
	"encoding/binary"
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
	values, valuesErr := sharedFields(from, spec.Value)
	keys, keysErr := sharedFields(from, spec.Key)
	if err := errors.Join(valuesErr, keysErr); err != nil {
		return "none: " + err.Error()
	}
	shift := addedBits(spec.Key, keys)
	copied, key, value := 0, make([]byte, from.KeySize()), make([]byte, from.ValueSize())
	entries := from.Iterate()
	for entries.Next(&key, &value) {
		newKey := copyFields(key, keys, to.KeySize())
		bits := binary.NativeEndian.Uint32(newKey) + shift
		binary.NativeEndian.PutUint32(newKey, bits)
		if to.Put(newKey, copyFields(value, values, to.ValueSize())) == nil {
			copied++
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Sprintf("%d, not all: %v", copied, err)
	}
	return fmt.Sprintf("%d, by their fields", copied)
}

func copyFields(from []byte, fields []sharedField, size uint32) []byte {
	out := make([]byte, size)
	for _, f := range fields {
		copy(out[f.to:f.to+f.size], from[f.from:f.from+f.size])
	}
	return out
}

// addedBits is how much longer a trie's prefixes are than in a layout that shares these fields with
// it: what is new in the key is in front of the address, and all of it counts. The first four bytes
// are the prefix's length.
func addedBits(key btf.Type, shared []sharedField) uint32 {
	size, err := btf.Sizeof(key)
	if err != nil {
		return 0
	}
	for _, f := range shared {
		size -= int(f.size)
	}
	return uint32(size) * 8
}

// sharedFields finds the fields of a map's keys or values that are in another type, too, under the
// same name and as large.
func sharedFields(m *ebpf.Map, now btf.Type) ([]sharedField, error) {
	is, ok := btf.UnderlyingType(now).(*btf.Struct)
	if !ok {
		return nil, errors.New("it holds no structs")
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
		for _, member := range is.Members {
			size, err := btf.Sizeof(old.Type)
			if nowSize, nowErr := btf.Sizeof(member.Type); err == nil && nowErr == nil &&
				size == nowSize && old.Name == member.Name && old.BitfieldSize == 0 &&
				member.BitfieldSize == 0 {
				out = append(out,
					sharedField{old.Offset.Bytes(), member.Offset.Bytes(), uint32(size)})
			}
		}
	}
	return out, nil
}
