package datapath

import (
	"testing"

	"weft.dev/weft/api/v1alpha1"
)

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

// TestIdentitiesAgree: the reserved identities are the same numbers in objects and in packets.
func TestIdentitiesAgree(t *testing.T) {
	for name, pair := range map[string][2]int{
		"unknown":     {v1alpha1.IdentityUnknown, bpfIdentityUnknown},
		"host":        {v1alpha1.IdentityHost, bpfIdentityHost},
		"remote host": {v1alpha1.IdentityRemoteHost, bpfIdentityRemoteHost},
		"world":       {v1alpha1.IdentityWorld, bpfIdentityWorld},
		"health":      {v1alpha1.IdentityHealth, bpfIdentityHealth},
		"unmanaged":   {v1alpha1.IdentityUnmanaged, bpfIdentityUnmanaged},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %d in objects and %d in packets", name, pair[0], pair[1])
		}
	}
}
