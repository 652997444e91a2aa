package netdev

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestUndoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "undo.json")
	u, err := openUndo(path)
	must(t, err)
	must(t,
		u.setOffloads("wta", offloads{Iface: "eth0", Features: map[string]bool{"rx-gro": false}}))
	must(t,
		u.setOffloads("wtb", offloads{Iface: "eth0", Features: map[string]bool{"rx-gro": true}}))
	again, err := openUndo(path)
	must(t, err)
	if noted := again.originals("wta"); len(noted) != 1 || noted["rx-gro"] {
		t.Errorf("noted for wta: %v, want rx-gro off", noted)
	}
	again.originals("wtb")["rx-gro"] = false // a copy
	must(t, again.setOffloads("wta", offloads{}))
	must(t, again.setOffloads("wta", offloads{}))
	third, err := openUndo(path)
	must(t, err)
	if third.originals("wta") != nil || !third.originals("wtb")["rx-gro"] {
		t.Errorf("on disk: %v", third.Offloads)
	}
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	if u, err := openUndo(path); err != nil || !strings.Contains(u.Damaged, path) {
		t.Errorf("broken file: %v, set aside as %q", err, u.Damaged)
	}
	must(t, os.WriteFile(path, []byte("{}"), 0o600))
	if u, err = openUndo(path); err != nil ||
		u.setOffloads("wta", offloads{Features: map[string]bool{"x": true}}) != nil {
		t.Errorf("empty object: %v", err)
	}
	if err := u.SetSysctl("net/weft/no_such_setting", "1"); err == nil {
		t.Error("a sysctl that is not there: want an error")
	}
	if _, err := os.Stat(path + ".tmp"); err == nil {
		t.Error("a temporary file was left")
	}
}

func TestPlanOffloads(t *testing.T) {
	type features = map[string]bool
	for name, c := range map[string]struct{ now, noted, wanted, change, originals features }{
		"first time": {features{"gro": false, "tx": true}, nil,
			features{"gro": true, "tx": false}, features{"gro": true, "tx": false},
			features{"gro": false, "tx": true}},
		"already so": {features{"gro": true}, nil, features{"gro": true},
			features{}, features{"gro": true}},
		"again: the original stays": {features{"gro": true}, features{"gro": false},
			features{"gro": true}, features{}, features{"gro": false}},
		"no longer wanted: put back": {features{"gro": true, "tx": false},
			features{"gro": false, "tx": true}, features{"gro": true}, features{"tx": true},
			features{"gro": false}},
		"put back by somebody else already": {features{"tx": true}, features{"tx": true}, nil,
			features{}, features{}},
		"changed by somebody in between": {features{"gro": false}, features{"gro": false},
			features{"gro": true}, features{"gro": true}, features{"gro": false}},
		"nothing at all": {features{"gro": true}, nil, nil, features{},
			features{}},
	} {
		change, originals := planOffloads(c.now, c.noted, c.wanted, RestoreOld)
		if !reflect.DeepEqual(change, c.change) || !reflect.DeepEqual(originals, c.originals) {
			t.Errorf("%s: change %v, note %v; want %v, %v", name, change, originals, c.change,
				c.originals)
		}
	}
}

// TestKeepOldOffloads: before the hooks change, what an earlier mode had set stays set and stays
// noted.
func TestKeepOldOffloads(t *testing.T) {
	type features = map[string]bool
	change, originals := planOffloads(features{"gro": false, "tx": false}, features{"tx": true},
		features{"gro": true}, KeepOld)
	if !reflect.DeepEqual(change, features{"gro": true}) ||
		!reflect.DeepEqual(originals, features{"gro": false, "tx": true}) {
		t.Errorf("change %v, note %v", change, originals)
	}
}

// TestDamagedUndoFile: one that cannot be read is kept aside and named, and the agent starts.
func TestDamagedUndoFile(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "half": `{"sysctls":{"net/ipv4/ip_fo`,
		"no object": `[]`, "nulls": `{"sysctls":null}`} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir() + "/" + undoName
			must(t, os.WriteFile(path, []byte(content), 0o600))
			u, err := openUndo(path)
			must(t, err)
			if u.Sysctls == nil || u.Offloads == nil || u.Damaged != path+".damaged" {
				t.Errorf("%+v", u)
			}
			if kept, err := os.ReadFile(u.Damaged); err != nil || string(kept) != content {
				t.Errorf("kept %q, %v", kept, err)
			}
			must(t, u.NoteNeighbor(netip.MustParseAddr("192.0.2.9")))
			again, err := openUndo(path)
			if err != nil || len(again.Neighbors) != 1 || again.Damaged != "" {
				t.Errorf("written anew: %+v, %v", again, err)
			}
		})
	}
}

func TestSecondHostIf(t *testing.T) {
	second := SecondHostIf("weft0123456789")
	if second != "wefx0123456789" || len(second) > 15 {
		t.Errorf("%s", second)
	}
	if !strings.HasPrefix(second, SecondPrefix) ||
		strings.HasPrefix("weft0123456789", SecondPrefix) {
		t.Error("cleanup tells second interfaces from first ones by their prefix")
	}
}
