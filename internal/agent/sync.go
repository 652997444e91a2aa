package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/store"
)

// settle is how long changes of the store are collected before they are applied.
const settle = 10 * time.Millisecond

// retryMin and retryMax bound the pauses between attempts of something that failed.
const (
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// watchStore keeps the index current. After a failure what was known stays in use until all has
// been listed again.
func (a *Agent) watchStore(ctx context.Context) {
	known := map[string]bool{}
	a.keep(ctx, "store", func(ctx context.Context) error {
		listed, first := false, store.NewSnapshot()
		return a.store.Watch(ctx, func(d store.Delta) {
			if listed {
				a.seeDelta(d)
			} else if first.Apply(d); d.Listed {
				listed = true
				a.see(first)
			}
			known = a.reportObjectErrors(a.index.Load().snapshot.Errors, known)
		})
	})
}

// reportObjectErrors logs each wrong object once, for as long as it stays wrong.
func (a *Agent) reportObjectErrors(problems []store.ObjectError,
	known map[string]bool) map[string]bool {
	now := make(map[string]bool, len(problems))
	for _, problem := range problems {
		text := problem.Error()
		now[text] = true
		if !known[text] {
			a.log.Warn("object ignored", "err", text)
		}
	}
	return now
}

// reconcile applies the store to the datapath at once and after each change, and
// again after a failure.
func (a *Agent) reconcile(ctx context.Context, n *node) {
	pause := retryMin
	for {
		again, nextPause := a.reconcileOnce(ctx, n, pause)
		if ctx.Err() != nil {
			return
		}
		pause = nextPause
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-a.changed:
			a.collect(ctx)
		case <-time.After(resync):
			a.oweLater(allWork)
		}
	}
}

// resync is how often everything is put in place again: what others took away on the host, or
// what failed without a sign, is mended by no change of the store.
const resync = time.Minute

// reconcileOnce returns when to try again, never after a success, and the pause for the time after
// that.
func (a *Agent) reconcileOnce(ctx context.Context, n *node,
	pause time.Duration) (<-chan time.Time, time.Duration) {
	todo := a.takeWork() // before the index: what comes between is looked at twice
	ix := a.index.Load()
	snapshot := ix.snapshot
	a.compareOwn(n, snapshot.Nodes[a.cfg.Node])
	// Whatever fails, the rest goes on: what is withdrawn must be withdrawn, and keys are for the
	// nodes that are well.
	var errNodes, errMasquerade error
	if todo.nodes {
		errNodes, errMasquerade = a.syncNodes(ctx, n, ix), a.syncMasquerade(n, snapshot)
	}
	err := errors.Join(errNodes, a.syncEncryption(n, ix, todo), errMasquerade)
	if ctx.Err() != nil {
		return nil, pause
	}
	a.problem("nodes", err)
	if err != nil {
		a.oweLater(allWork)
	}
	waiting := a.readyUnless(ctx, snapshot, err)
	// One broken pod is a problem, but does not make the node unready.
	errEndpoints := n.manager.Sync(ctx)
	if errEndpoints != nil {
		errEndpoints = fmt.Errorf("sync endpoints: %w", errEndpoints)
	}
	a.problem("endpoints", errEndpoints)
	// Behind the endpoints, whose labels may have changed.
	if todo.policies {
		errEndpoints = errors.Join(errEndpoints, a.syncPolicies(n, ix))
	}
	switch {
	case err == nil && errEndpoints == nil && waiting:
		return time.After(keysLook), retryMin
	case err == nil && errEndpoints == nil:
		return nil, retryMin
	}
	return time.After(pause), min(2*pause, retryMax)
}

// syncPolicies has endpoints get what policies say, and remembers these. What fails is tried again.
// Policies are written down first: the next start is to know each that was in force. Labels are
// behind: what is there before the file is applied again by the next start anyway, and how long
// writing takes is not to be for how long a changed label does not count. They are written down
// whether or not all endpoints have got their sets, as most have.
func (a *Agent) syncPolicies(n *node, ix *index) error {
	err := errors.Join(a.rememberPolicies(ix.policies()),
		n.policies.apply(ix, n.manager.List, a.cfg.Node), a.rememberLabels())
	a.problem("policies", err)
	a.problem("policy objects", n.policies.problem())
	if err != nil {
		a.oweLater(work{policies: true})
	}
	return err
}

// keysLook is how often a node that is not ready looks whether its keys have come.
const keysLook = 100 * time.Millisecond

// readyUnless makes the node ready, or says what it still waits for.
func (a *Agent) readyUnless(ctx context.Context, snapshot *store.Snapshot,
	err error) (waiting bool) {
	if a.readiness().Ready {
		return false
	}
	if err != nil {
		a.wait("the first synchronisation of nodes: " + err.Error())
		return false // the failure itself is tried again
	}
	if unseen := a.running().manager.Unseen(); unseen != nil {
		a.wait("a pod's network namespace that can be looked into: " + unseen.Error())
		return true
	}
	if missing := a.keysWaiting(ctx, snapshot); missing != "" {
		a.wait(missing)
		return true
	}
	a.setReady()
	return false
}

func (a *Agent) syncNodes(ctx context.Context, n *node, ix *index) error {
	if err := n.dp.SetNodes(ctx, a.datapathNodes(ix)); err != nil {
		return fmt.Errorf("set nodes: %w", err)
	}
	return nil
}

// syncMasquerade touches the host's rules only when what they should be has changed.
func (a *Agent) syncMasquerade(n *node, snapshot *store.Snapshot) error {
	var outward []string
	if a.cfg.Masquerade.Enabled {
		var err error
		if outward, err = a.seams.outward(n.links.Uplinks); err != nil {
			return err
		}
	}
	want := wantedMasquerade(a.cfg, n.object, outward, snapshot.Nodes)
	n.maskLock.Lock()
	defer n.maskLock.Unlock()
	if n.maskedOnce && n.masked.Equal(want) {
		return nil
	}
	if err := a.seams.masquerade(a.cfg.Instance, want); err != nil {
		return err
	}
	n.masked, n.maskedOnce = want, true
	return nil
}

// collect lets a burst of changes pass and takes it as one.
func (a *Agent) collect(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settle):
	}
	select {
	case <-a.changed:
	default:
	}
}

// compareOwn tells when this node's own object no longer is what the agent started with.
func (a *Agent) compareOwn(n *node, now *v1alpha1.Node) {
	switch {
	case now == nil:
		a.problem("own node",
			fmt.Errorf("the Node object %s is gone from %s: the agent goes on with what it had; other nodes may not", a.cfg.Node, a.cfg.Store.Where()))
	case !slices.Equal(now.Spec.Addresses, n.object.Spec.Addresses) ||
		!slices.Equal(now.Spec.PodCIDRs, n.object.Spec.PodCIDRs):
		a.problem("own node",
			fmt.Errorf("the Node object %s has changed its addresses or podCIDRs: restart the agent to apply it (traffic goes on meanwhile)", a.cfg.Node))
	default:
		a.problem("own node", nil)
	}
}

// peers are the other nodes, by name.
func peers(nodes map[string]*v1alpha1.Node, own string) []datapath.Node {
	var out []datapath.Node
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if name != own {
			spec := nodes[name].Spec
			out = append(out,
				datapath.Node{Name: name, Addresses: spec.Addresses, PodCIDRs: spec.PodCIDRs})
		}
	}
	return out
}

// steady is how long something must run before it counts as working.
const steady = 2 * time.Second

// keep runs something that should run as long as the agent, and again when it fails.
func (a *Agent) keep(ctx context.Context, what string, run func(context.Context) error) {
	pause := retryMin
	for {
		began := time.Now()
		works := time.AfterFunc(steady, func() { a.problem(what, nil) })
		err := run(ctx)
		works.Stop()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended unexpectedly")
		}
		a.problem(what, fmt.Errorf("%s: %w", what, err))
		if time.Since(began) > retryMax {
			pause = retryMin
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, retryMax)
	}
}

// consumeEvents turns the datapath's events into the flow log.
func (a *Agent) consumeEvents(ctx context.Context) error {
	enricher := flows.Enricher{Node: a.cfg.Node, Resolver: names{a}, ReasonText: reasonText,
		Refusal: a.refusal}
	return a.running().dp.Events(ctx, func(event datapath.FlowEvent) {
		a.requestRekey(event)
		a.hub.Publish(enricher.Flow(event))
	})
}

func (a *Agent) writeFlowLog(ctx context.Context) {
	if a.cfg.Flows.Log == "" {
		return
	}
	a.keep(ctx, "flow log", func(ctx context.Context) error {
		return flows.WriteFile(ctx, a.hub, a.cfg.Flows.Log, a.log)
	})
}

func (a *Agent) serveMetrics(ctx context.Context) {
	if a.cfg.Metrics.Listen == "" {
		return
	}
	handler := metrics.Handler(metrics.NewRegistry(a, reasonLabels()), func() (bool, string) {
		ready := a.readiness()
		return ready.Ready, "waiting for " + ready.Waiting
	})
	a.keep(ctx, "metrics", func(ctx context.Context) error {
		return metrics.Serve(ctx, a.cfg.Metrics.Listen, handler)
	})
}
