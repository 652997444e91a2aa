package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/netdev"
)

// Restore makes what is recorded and what exists agree: endpoints that are complete get
// their datapath, routes and neighbours again, those half made or half removed are taken
// away, those whose interface is gone (or whose record is of an earlier boot) are freed.
//
// The error names endpoints that could not be put in order; all others are. Sync goes on
// trying those, so an agent should report the error and carry on.
func (m *Manager) Restore(ctx context.Context) error {
	var (
		mu    sync.Mutex
		errs  []error
		group errgroup.Group
	)
	group.SetLimit(4)
	for _, rec := range m.snapshot() {
		group.Go(func() error {
			if err := m.restore(ctx, rec.ID); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs,
					fmt.Errorf("restore endpoint %s of %s: %w", rec.ID, rec.Key(), err))
			}
			return nil
		})
	}
	_ = group.Wait()
	errs = append(errs, m.removeOrphans())
	if err := ctx.Err(); err != nil {
		return errors.Join(append(errs, err)...)
	}
	m.mu.Lock()
	m.restored = true
	m.mu.Unlock()
	err := errors.Join(errs...)
	if err != nil {
		m.retryLater("")
	}
	return err
}

func (m *Manager) restore(ctx context.Context, id string) error {
	defer m.endpoints.lock(id)()
	rec, ok := m.record(id)
	if !ok {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.order(rec)
}

// order frees an endpoint that is gone and repairs any other. Call with the endpoint locked.
func (m *Manager) order(rec record) error {
	why := m.lost(rec)
	if errors.Is(why, netdev.ErrGone) {
		m.log.Info("freeing endpoint", "endpoint", rec.ID, "pod", rec.Key(), "reason", why)
		return m.teardown(rec)
	}
	m.noteUnseen(rec.ID, why)
	err := why
	if errors.Is(why, errUnseen) || why == nil {
		err = errors.Join(why, m.repair(&rec))
	}
	m.noteAttach(rec.ID, err)
	m.publish(rec.objectKey())
	return err
}

// errUnseen is in the error when a pod's interface is there and its namespace cannot be looked
// into.
var errUnseen = errors.New("cannot be seen from here")

// lost says, with netdev.ErrGone, why an endpoint must be freed, nil if it must be restored. Only
// the record and the node's end decide: that end lives no longer than the pod's, wherever that is.
// A path that leads nowhere says as much about the agent's own mounts.
func (m *Manager) lost(rec record) error {
	switch {
	case rec.State != StateReady:
		return fmt.Errorf("it is %s (%w)", rec.State, netdev.ErrGone)
	case rec.Boot != m.boot:
		return fmt.Errorf("the machine was booted since (%w)", netdev.ErrGone)
	}
	host, err := netdev.FindOnNode(rec.HostIf)
	if err != nil {
		return err
	}
	ns, err := openNetNS(rec.NetNS)
	if err == nil {
		defer ns.Close()
		err = checkPeers(rec.Info, host, ns)
	}
	if err == nil || rec.Chained && errors.Is(err, errOtherPeer) {
		return err
	}
	return fmt.Errorf("the pod's end of %s %w (is the directory of namespaces mounted for the agent?); the endpoint is kept until DEL: %v", rec.HostIf, errUnseen, err)
}

func (m *Manager) noteUnseen(id string, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(why, errUnseen) {
		m.unseen[id] = why
	} else {
		delete(m.unseen, id)
	}
}

// Unseen says why not one pod's namespace can be looked into, nil if one can, or there is no pod:
// then the agent's own view is wrong rather than the pods.
func (m *Manager) Unseen() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var why error
	for _, rec := range m.records {
		if rec.State != StateReady {
			continue
		}
		if why = m.unseen[rec.ID]; why == nil {
			return nil
		}
	}
	return why
}

// repair puts an endpoint's settings and datapath in place again: on the node's side
// also where the pod's cannot be seen. The node's end is not set up before its hooks are there.
func (m *Manager) repair(rec *record) error {
	errDatapath := m.recallPodDatapath(rec)
	return errors.Join(errDatapath, m.repairEnds(rec))
}

func (m *Manager) repairEnds(rec *record) error {
	if rec.Chained {
		return errors.Join(m.refreshChained(rec), m.reattachNow(*rec))
	}
	ns, err := openNetNS(rec.NetNS)
	if err != nil {
		return m.repairHost(*rec)
	}
	defer ns.Close()
	v, err := openVeth(rec.Info, ns)
	if err != nil {
		return err
	}
	defer v.close()
	return errors.Join(m.repairSide(v), v.configurePod())
}

// repairHost is repair of the node's side alone.
func (m *Manager) repairHost(rec record) error {
	h, err := netdev.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	return m.repairSide(&veth{Info: rec.Info, host: h})
}

func (m *Manager) repairSide(v *veth) error {
	err := errors.Join(v.configureHost(), m.reattachNow(record{Info: v.Info}))
	if errors.Is(err, errDatapath) {
		return err
	}
	return errors.Join(err, v.raiseHost())
}

// reattachNow attaches an endpoint again. With errDatapath in the error its hooks are not there.
func (m *Manager) reattachNow(rec record) error {
	if m.opt.Datapath == nil {
		return nil
	}
	err := m.attachNow(rec)
	if err == nil {
		m.noteAttach(rec.ID, nil)
		return nil
	}
	err = fmt.Errorf("attach datapath: %w", err)
	if checkErr := m.opt.Datapath.CheckEndpoint(rec.Datapath()); checkErr != nil {
		err = fmt.Errorf("%w: %w", errDatapath, err)
	}
	m.noteAttach(rec.ID, err)
	return err
}

// recallPodDatapath asks for the datapath of an endpoint that has a second interface and no word of
// why in its record: agents gave one to every pod, once. It keeps that if its pod is declared to
// want it.
func (m *Manager) recallPodDatapath(rec *record) error {
	if rec.XDPDatapath() || rec.Chained || !netdev.ExistsOnNode(netdev.SecondHostIf(rec.HostIf)) {
		return nil
	}
	pod, err := m.declared(rec.Info)
	if err != nil || pod == nil || pod.Metadata.Annotations[v1alpha1.DatapathAnnotation] == rec.PodDatapath {
		return nil
	}
	rec.PodDatapath = pod.Metadata.Annotations[v1alpha1.DatapathAnnotation]
	if err := m.disk.save(*rec); err != nil {
		return err
	}
	m.remember(*rec)
	return nil
}

// refreshChained follows the gateway's address: a bridge's may change with its ports, and the
// interface with its bridge.
func (m *Manager) refreshChained(rec *record) error {
	outer, err := netdev.FindOnNode(rec.HostIf)
	if err != nil {
		return err
	}
	mac, err := chainedGateway(rec.Info, outer)
	if err != nil || mac.String() == rec.GatewayMAC {
		return err
	}
	rec.GatewayMAC = mac.String()
	if err := m.disk.save(*rec); err != nil {
		return err
	}
	m.remember(*rec)
	return nil
}
