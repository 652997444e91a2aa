// Package bpftest is what tests of the datapath share.
package bpftest

import "github.com/cilium/ebpf"

// Keys lists a map's keys, whatever kind of map it is.
func Keys(m *ebpf.Map) (keys [][]byte, err error) {
	key, err := m.NextKeyBytes(nil)
	for ; err == nil && key != nil; key, err = m.NextKeyBytes(key) {
		keys = append(keys, key)
	}
	return keys, err
}
