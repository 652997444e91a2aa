package nexthop

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestHandlesRunOut: a handle is one identity's, within what 14 bits hold, and where there are none
// left identities have none.
func TestHandlesRunOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a BPF map")
	}
	table, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4,
		MaxEntries: maxHandles})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	all := map[uint32]bool{}
	for i := range uint32(maxHandles) {
		all[1000+i] = true
	}
	handles := identityHandles{byIdentity: map[uint32]uint16{}, next: firstHandle}
	given, err := handles.assign(&bpf.Maps{Handles: table}, all)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint16]bool{}
	for _, handle := range given {
		if handle != 0 && (seen[handle] || handle < firstHandle || handle >= maxHandles) {
			t.Fatalf("handle %d", handle)
		}
		seen[handle] = true
	}
	if len(seen) != maxHandles-firstHandle+1 || !seen[0] {
		t.Errorf("%d handles were given out", len(seen))
	}
}
