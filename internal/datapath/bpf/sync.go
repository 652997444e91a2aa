package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// DeleteKey removes an entry, which may be gone already.
func DeleteKey(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete from %s: %w", m, err)
	}
	return nil
}

// DeleteWhere removes the entries of a map that gone says so of.
func DeleteWhere[K comparable, V any](m *ebpf.Map, gone func(K, V) bool) error {
	var key K
	var value V
	stale := map[K]bool{}
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		if gone(key, value) {
			stale[key] = true
		}
	}
	failed := entries.Err()
	for k := range stale {
		failed = errors.Join(failed, DeleteKey(m, &k))
	}
	return failed
}

// SyncSet makes want the only keys of a map whose values say nothing. What is not wanted goes
// first: it must not stay because the rest does not fit.
func SyncSet[K comparable](m *ebpf.Map, want map[K]bool) (changed bool, err error) {
	return SyncMap(m, want, func(K) uint8 { return 1 })
}

// SyncMap makes want, each with its value, the only keys of a map. What is not wanted goes first,
// as in SyncSet.
func SyncMap[K, V comparable](m *ebpf.Map, want map[K]bool,
	valueOf func(K) V) (changed bool, err error) {
	var key K
	var value V
	have := map[K]V{}
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		have[key] = value
	}
	if err := entries.Err(); err != nil {
		return false, err
	}
	for k := range have {
		if !want[k] {
			if err := DeleteKey(m, &k); err != nil {
				return changed, err
			}
			changed = true
		}
	}
	for k := range want {
		now, there := have[k]
		wanted := valueOf(k)
		if there && now == wanted {
			continue
		}
		if err := m.Put(&k, &wanted); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// ZeroArray overwrites the entries of an array that are not zero.
func ZeroArray(m *ebpf.Map) error {
	value, zero := make([]byte, m.ValueSize()), make([]byte, m.ValueSize())
	for i := range m.MaxEntries() {
		if err := m.Lookup(i, value); err != nil {
			return fmt.Errorf("read %s: %w", m, err)
		}
		if string(value) == string(zero) {
			continue
		}
		if err := m.Put(i, zero); err != nil {
			return fmt.Errorf("clear %s: %w", m, err)
		}
	}
	return nil
}
