package datapath

import (
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/nexthop"
)

// TestSizesAgree: the constants here are the C side's.
func TestSizesAgree(t *testing.T) {
	specs, err := bpf.SharedMaps(0, true)
	must(t, err)
	for name, want := range map[string]uint32{"weft_counters": MaxEndpoints << 4,
		"weft_ep_addr": MaxEndpoints * MaxAddresses, "weft_nexthops": 2 * nexthop.MaxNodeIndexes} {
		if got := specs[name].MaxEntries; got != want {
			t.Errorf("%s has %d entries, want %d", name, got, want)
		}
	}
}

// TestIdentitiesAgree: the reserved identities are the same numbers in objects and in packets.
func TestIdentitiesAgree(t *testing.T) {
	for name, pair := range map[string][2]int{
		"unknown":     {v1alpha1.IdentityUnknown, bpf.IdentityUnknown},
		"host":        {v1alpha1.IdentityHost, bpf.IdentityHost},
		"remote host": {v1alpha1.IdentityRemoteHost, bpf.IdentityRemoteHost},
		"world":       {v1alpha1.IdentityWorld, bpf.IdentityWorld},
		"health":      {v1alpha1.IdentityHealth, bpf.IdentityHealth},
		"unmanaged":   {v1alpha1.IdentityUnmanaged, bpf.IdentityUnmanaged},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %d in objects and %d in packets", name, pair[0], pair[1])
		}
	}
}
