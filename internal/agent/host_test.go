package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/store"
)

// TestHostChangedByOthers: endpoints are mended at once, masquerading is set again, and status
// tells of all.
func TestHostChangedByOthers(t *testing.T) {
	w, ctx := upWorld(), context.Background()
	w.host.problems, w.host.records = []string{"uplink wire is missing"}, []string{"record x could not be read"}
	w.host.notes = []datapath.Note{{Time: time.Unix(1, 0), Text: "2 of Weft's routes were gone"}}
	cfg := testConfig(t)
	cfg.Masquerade.Enabled = true
	client, _ := w.start(t, cfg)
	eventually(t, "ready", func() bool { return ready(client) })
	eventually(t, "the first look",
		func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.host.mends > 0 })
	w.mu.Lock()
	before, masks := w.host.mends, len(w.masks)
	w.host.unmasked, w.host.uplinks = true, []string{"bond0"}
	w.mu.Unlock()
	w.host.changes <- datapath.HostChange{Interfaces: []string{"weft0"}}
	eventually(t, "mending of the one that the event names", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.host.mended,
			func(names []string) bool { return slices.Equal(names, []string{"weft0"}) })
	})
	w.host.changes <- datapath.HostChange{All: true}
	eventually(t, "mending",
		func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.host.mends > before &&
				len(w.masks) > masks
		})
	eventually(t, "status", func() bool {
		s, err := client.Status(ctx)
		problems := strings.Join(s.Problems, "\n")
		return err == nil && len(s.Notes) == 2 &&
			strings.Contains(s.Notes[1].Text, "masquerading rules were gone") &&
			strings.Contains(problems, "uplink wire is missing") &&
			strings.Contains(problems, "record x could not be read") &&
			strings.Contains(problems, "addresses are on [bond0] now, the hooks on [wire]")
	})
}

// TestNotReadyWhileNoPodIsSeen: an agent with a wrong view of the pods' namespaces is not ready,
// and says so.
func TestNotReadyWhileNoPodIsSeen(t *testing.T) {
	w := upWorld()
	w.host.unseen = errors.New("weft1 cannot be seen from here")
	client, _ := w.start(t, testConfig(t))
	eventually(t, "the reason", func() bool {
		state, err := client.Ready(context.Background())
		return err == nil && !state.Ready &&
			strings.Contains(state.Waiting, "weft1 cannot be seen from here")
	})
	w.mu.Lock()
	w.host.unseen = nil
	w.mu.Unlock()
	eventually(t, "ready", func() bool { return ready(client) })
}

// TestWithdrawLeavesMovedEndpoints: after a restart, too, a node removes only the objects that are
// its own.
func TestWithdrawLeavesMovedEndpoints(t *testing.T) {
	dir := t.TempDir()
	moved := &v1alpha1.Endpoint{
		Metadata: v1alpha1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: v1alpha1.EndpointSpec{NodeName: "b",
			Addresses: []netip.Addr{netip.MustParseAddr("10.2.0.2")}},
	}
	opened := func(node string) (store.Store, error) {
		return openStore(&config.Config{Node: node, Store: config.Store{Dir: dir}}, nil)
	}
	b, err := opened("b")
	if err != nil {
		t.Fatal(err)
	}
	restarted, err := opened("a")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "endpoints", "shop--web.yaml")
	if err := errors.Join(b.PutEndpoint(moved), restarted.DeleteEndpoint("shop/web")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("another node's endpoint was withdrawn: %v", err)
	}
	if err := b.DeleteEndpoint("shop/web"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the node's own endpoint stays")
	}
}
