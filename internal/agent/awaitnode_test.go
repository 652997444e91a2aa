package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/store"
)

// TestNodeWithoutRanges: in Kubernetes a Node has its podCIDRs only some time after it is there.
// The agent waits for them; where ranges are configured, or the objects are people's, it does not.
func TestNodeWithoutRanges(t *testing.T) {
	bare := func(s *store.Snapshot) {
		s.Nodes["a"] = nodeObject("a", "192.0.2.1", "10.1.0.0/24")
		s.Nodes["a"].Spec.PodCIDRs = nil
	}
	kubernetes := config.Store{Kubernetes: config.Kubernetes{Enabled: true}}
	for name, change := range map[string]func(*config.Config){
		"a directory": func(*config.Config) {},
		"ipam.ranges": func(c *config.Config) {
			c.Store = kubernetes
			c.IPAM.Ranges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, cfg := newWorld(), testConfig(t)
			change(cfg)
			client, stop := w.start(t, cfg)
			w.put(bare)
			eventually(t, "ready", func() bool { return ready(client) })
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("pods of a run before", func(t *testing.T) {
		cfg := testConfig(t)
		cfg.Store = kubernetes
		object := nodeObject("a", "192.0.2.1", "10.1.0.0/24")
		object.Spec.PodCIDRs = nil
		if lacksRanges(cfg, object) == nil {
			t.Error("a node without pods does not wait")
		}
		records := filepath.Join(cfg.StateDir(), "endpoints")
		if err := errors.Join(os.MkdirAll(records, 0o700),
			os.WriteFile(filepath.Join(records, "x.json"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := lacksRanges(cfg, object); err != nil {
			t.Errorf("a node with pods waits: %v", err)
		}
	})
	w, cfg := newWorld(), testConfig(t)
	cfg.Store = kubernetes
	client, stop := w.start(t, cfg)
	w.put(bare)
	eventually(t, "the agent to wait for podCIDRs", func() bool {
		status, err := client.Status(context.Background())
		return err == nil && strings.Contains(status.Waiting, "podCIDRs of the Node object a") &&
			strings.Contains(status.Waiting, "ipam.ranges")
	})
	w.put(func(s *store.Snapshot) { s.Nodes["a"] = nodeObject("a", "192.0.2.1", "10.1.0.0/24") })
	eventually(t, "ready", func() bool { return ready(client) })
	status, err := client.Status(context.Background())
	if err != nil || len(status.PodCIDRs) != 1 || len(status.Problems) != 0 {
		t.Errorf("status %+v %v", status, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
