package agent

import (
	"testing"

	"weft.dev/weft/internal/masquerade"
	"weft.dev/weft/internal/store"
)

// lastMask is what the host's rules were last set to; set says whether they ever were.
func (w *world) lastMask() (mask *masquerade.Options, set bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.masks) == 0 {
		return nil, false
	}
	return w.masks[len(w.masks)-1], true
}

// Pods of a node that joins see each other's own addresses from then on.
func TestMasqueradeFollowsNodes(t *testing.T) {
	w, cfg := upWorld(), testConfig(t)
	cfg.Instance, cfg.Masquerade.Enabled = "blue", true
	client, _ := w.start(t, cfg)
	eventually(t, "ready", func() bool { return ready(client) })
	want := masquerade.Options{
		Instance: "blue", Uplinks: []string{"wire"}, PodCIDRs: prefixes("10.1.0.0/24"),
		Except: prefixes("10.1.0.0/24", "10.2.0.0/24", "192.0.2.1/32", "192.0.2.2/32"),
	}
	if got, set := w.lastMask(); !set || !want.Equal(got) {
		t.Fatalf("rules %+v, want %+v", got, want)
	}
	w.put(func(s *store.Snapshot) { s.Nodes["c"] = nodeObject("c", "192.0.2.3", "10.3.0.0/24") })
	want.Except = prefixes("10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/24", "192.0.2.1/32",
		"192.0.2.2/32", "192.0.2.3/32")
	eventually(t, "rules for the third node", func() bool {
		got, _ := w.lastMask()
		return want.Equal(got)
	})
}

// An agent that starts with masquerading off takes away what an earlier one has set.
func TestMasqueradeOff(t *testing.T) {
	w := upWorld()
	client, _ := w.start(t, testConfig(t))
	eventually(t, "ready", func() bool { return ready(client) })
	if got, set := w.lastMask(); !set || got != nil {
		t.Errorf("rules %+v, set %v: want none, set once", got, set)
	}
}
