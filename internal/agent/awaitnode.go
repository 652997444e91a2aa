package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/startup"
)

// awaitNode waits until the store has this node's object and an interface has its addresses.
func (a *Agent) awaitNode(ctx context.Context) (*v1alpha1.Node, startup.Links, bool) {
	for {
		reason := fmt.Sprintf("Node object %s in %s", a.cfg.Node, a.cfg.Store.Where())
		if err := storeAway(a.store); err != nil {
			reason += ": " + err.Error()
		}
		if object := a.index.Load().snapshot.Nodes[a.cfg.Node]; object != nil {
			links, err := a.seams.findLinks(a.cfg, object)
			if err == nil {
				err = lacksRanges(a.cfg, object)
			}
			if err == nil {
				return object, links, true
			}
			reason = err.Error()
		}
		a.wait(reason)
		select {
		case <-ctx.Done():
			return nil, startup.Links{}, false
		case <-a.changed:
		case <-time.After(time.Second):
		}
	}
}

// lacksRanges is an error for a Node of Kubernetes to which no podCIDRs have been given yet: its
// kubelet makes the object, and a controller adds them a moment later. An agent that began without
// them would have no address for any pod until it is restarted. One that has pods goes on with
// them: their keys, their policies and their removal do not wait for addresses of others.
func lacksRanges(cfg *config.Config, object *v1alpha1.Node) error {
	if !cfg.Store.Kubernetes.Enabled || len(cfg.IPAM.Ranges)+len(object.Spec.PodCIDRs) > 0 ||
		hasRecords(cfg) {
		return nil
	}
	return fmt.Errorf("podCIDRs of the Node object %s, which kube-controller-manager gives it with --allocate-node-cidrs: set ipam.ranges where nothing does", object.Metadata.Name)
}

// hasRecords says whether endpoints of a run before are to be restored.
func hasRecords(cfg *config.Config) bool {
	records, err := filepath.Glob(filepath.Join(cfg.StateDir(), stateDirs[0], "*.json"))
	return err == nil && len(records) > 0
}
