package datapath

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
)

// pinHarness is a pin directory with a node's maps in it, as an agent leaves them.
func pinHarness(t *testing.T, flows uint32) (string, *bpf.Maps) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: pins BPF maps")
	}
	dir, err := privateBPFFS()
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	m, err := openMaps(dir, flows, true, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(m.Close)
	return dir, m
}

func mapID(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	must(t, err)
	id, _ := info.ID()
	return id
}

// TestMapsAreAdopted: a second start finds the very maps of the first.
func TestMapsAreAdopted(t *testing.T) {
	dir, first := pinHarness(t, 64)
	second, err := openMaps(dir, 64, true, slog.New(slog.DiscardHandler))
	must(t, err)
	defer second.Close()
	for name, m := range first.ByName {
		if mapID(t, m) != mapID(t, second.ByName[name]) {
			t.Errorf("%s was made again", name)
		}
	}
}

// TestFlowTableResized: with another size configured, the flows move to a new table, and Prune
// removes the old.
func TestFlowTableResized(t *testing.T) {
	dir, first := pinHarness(t, 64)
	key, flow := bpf.Key4{A: 1, B: 2, Proto: 6}, bpf.Flow{State: bpf.StateEstablished}
	must(t, first.Flows4.Put(&key, &flow))
	must(t, first.Config.Put(uint32(0), &bpf.Config{Generation: 7}))
	second, err := openMaps(dir, 256, true, slog.New(slog.DiscardHandler))
	must(t, err)
	defer second.Close()
	var got bpf.Flow
	if err := second.Flows4.Lookup(&key, &got); err != nil || got != flow ||
		second.Flows4.MaxEntries() != 256 {
		t.Errorf("flow in the new table: %+v, %v", got, err)
	}
	var config bpf.Config
	if err := second.Config.Lookup(uint32(0), &config); err != nil || config.Generation != 7 {
		t.Errorf("generation %d, %v; want the old map's 7", config.Generation, err)
	}
	bpf.DropStale(dir, 256, true, slog.New(slog.DiscardHandler))
	if stale, _ := filepath.Glob(filepath.Join(dir, bpf.MapPin+"weft_flows*-64")); len(stale) != 0 {
		t.Errorf("left: %v", stale)
	}
	pins, _ := filepath.Glob(filepath.Join(dir, bpf.MapPin+"*"))
	if len(pins) != len(second.ByName) {
		t.Errorf("%d pins for %d maps", len(pins), len(second.ByName))
	}
}

// TestLayoutChanged: a map of another layout is not read, whatever its name.
func TestLayoutChanged(t *testing.T) {
	dir, first := pinHarness(t, 64)
	pins, _ := filepath.Glob(filepath.Join(dir, bpf.MapPin+"weft_nexthops-*"))
	if len(pins) != 1 {
		t.Fatalf("pins: %v", pins)
	}
	must(t, first.Nexthops.Put(uint32(2), &bpf.Nexthop{Ifindex: 9}))
	parts := strings.Split(pins[0], "-")
	parts[len(parts)-2] = "00000000"
	must(t, os.Rename(pins[0], strings.Join(parts, "-")))
	second, err := openMaps(dir, 64, true, slog.New(slog.DiscardHandler))
	must(t, err)
	defer second.Close()
	var node bpf.Nexthop
	if err := second.Nexthops.Lookup(uint32(2), &node); err != nil || node != (bpf.Nexthop{}) {
		t.Errorf("read from a map of another layout: %+v, %v", node, err)
	}
}

// TestIdentitiesOfTheReleaseBefore: the identities of peers had no handles once. They are taken
// over without any, or sealed packets would be refused until the agent has all objects; handles
// come with SetPeerIdentities.
func TestIdentitiesOfTheReleaseBefore(t *testing.T) {
	dir, first := pinHarness(t, 64)
	pins, _ := filepath.Glob(filepath.Join(dir, bpf.MapPin+"weft_peer_ids-*"))
	if len(pins) != 1 {
		t.Fatalf("pins: %v", pins)
	}
	must(t, os.Remove(pins[0]))
	old, err := ebpf.NewMap(&ebpf.MapSpec{Name: "weft_peer_ids", Type: ebpf.Hash, KeySize: 8,
		ValueSize: 1, MaxEntries: first.PeerIDs.MaxEntries(), Flags: 1})
	must(t, err)
	defer old.Close()
	parts := strings.Split(pins[0], "-")
	parts[len(parts)-2] = "0ddba11e"
	must(t, old.Pin(strings.Join(parts, "-")))
	for _, id := range []bpf.PeerId{{Node: 1, Identity: 300}, {Node: 2, Identity: 301}} {
		must(t, old.Put(&id, uint8(1)))
	}
	second, err := openMaps(dir, 64, true, slog.New(slog.DiscardHandler))
	must(t, err)
	defer second.Close()
	for _, id := range []bpf.PeerId{{Node: 1, Identity: 300}, {Node: 2, Identity: 301}} {
		handle := uint16(1)
		if err := second.PeerIDs.Lookup(&id, &handle); err != nil || handle != 0 {
			t.Errorf("%+v: handle %d, %v; want 0", id, handle, err)
		}
	}
	keys, err := bpftest.Keys(second.PeerIDs)
	if must(t, err); len(keys) != 2 {
		t.Errorf("%d identities, want 2", len(keys))
	}
}

// TestBPFFSMissing: pins outside a BPF file system would vanish; the error says what to do.
func TestBPFFSMissing(t *testing.T) {
	err := checkBPFFS(filepath.Join(t.TempDir(), "weft", "node1"))
	if err == nil || !strings.Contains(err.Error(), "mount -t bpf") {
		t.Errorf("%v, want an error with the mount command", err)
	}
}
