package datapath

import "testing"

// TestSizesAgree: the constants here are the C side's.
func TestSizesAgree(t *testing.T) {
	specs, err := sharedMaps(0, true)
	must(t, err)
	for name, want := range map[string]uint32{"weft_counters": MaxEndpoints << 4, "weft_nodes": 2 * maxNodes} {
		if got := specs[name].MaxEntries; got != want {
			t.Errorf("%s has %d entries, want %d", name, got, want)
		}
	}
}
