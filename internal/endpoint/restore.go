package endpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
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
				errs = append(errs, fmt.Errorf("restore endpoint %s of %s: %w", rec.ID, rec.Key(), err))
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
	if why := m.lost(rec); errors.Is(why, errGone) {
		m.log.Info("freeing endpoint", "endpoint", rec.ID, "pod", rec.Key(), "reason", why)
		return m.teardown(rec)
	} else if why != nil {
		m.noteAttach(rec.ID, why)
		return why
	}
	err := m.repair(&rec)
	m.publish(rec.objectKey())
	return err
}

// lost says, with errGone, why an endpoint must be freed, nil if it must be restored.
// When it cannot tell, the endpoint stays: a live pod is not cut off for want of a file.
func (m *Manager) lost(rec record) error {
	switch {
	case rec.State != StateReady:
		return fmt.Errorf("it is %s (%w)", rec.State, errGone)
	case rec.Boot != m.boot:
		return fmt.Errorf("the machine was booted since (%w)", errGone)
	}
	host, err := hostLink(rec.HostIf)
	if err != nil {
		return err
	}
	ns, err := openNetNS(rec.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	return checkPeers(rec.Info, host, ns)
}

// repair puts an endpoint's settings and datapath in place again.
func (m *Manager) repair(rec *record) error {
	ns, err := openNetNS(rec.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	if rec.Chained {
		err = m.refreshChained(rec)
	} else {
		err = reconfigure(rec.Info, ns)
	}
	if m.opt.Datapath == nil {
		return err
	}
	attachErr := m.opt.Datapath.AttachEndpoint(rec.Datapath())
	m.noteAttach(rec.ID, attachErr)
	if attachErr != nil {
		err = errors.Join(err, fmt.Errorf("attach datapath: %w", attachErr))
	}
	return err
}

// refreshChained follows the address of the bridge, which may have changed with its ports.
func (m *Manager) refreshChained(rec *record) error {
	mac, err := chainedGateway(rec.HostIf)
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
