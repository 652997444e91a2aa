package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft.dev/weft/internal/netdev"
)

// Del removes an endpoint. One that is not there is no error, nor is a namespace that is gone.
func (m *Manager) Del(ctx context.Context, req DelRequest) error {
	if err := req.validate(); err != nil {
		return err
	}
	defer m.endpoints.lock(req.ID())()
	rec, ok := m.record(req.ID())
	if !ok {
		// An interface without a record can be there if the state directory was lost.
		return deleteHostLinks(req.HostIf())
	}
	if err := m.teardown(rec); err != nil {
		return fmt.Errorf("remove endpoint of %s: %w", rec.Key(), err)
	}
	m.log.Info("endpoint removed", "endpoint", rec.ID, "pod", rec.Key(), "addresses",
		rec.Addresses())
	return nil
}

// GC removes every endpoint that is not in keep, whichever network asked for it.
func (m *Manager) GC(ctx context.Context, keep []Attachment) error {
	return m.GCNetwork(ctx, "", keep)
}

// GCNetwork removes the endpoints of one network that are not in keep; an empty name means
// all. Endpoints that came into being after the call are kept: its caller cannot know them.
func (m *Manager) GCNetwork(ctx context.Context, network string, keep []Attachment) error {
	began := time.Now()
	var errs []error
	for _, rec := range m.snapshot() {
		kept := slices.Contains(keep, Attachment{rec.ContainerID, rec.IfName})
		if kept || network != "" && rec.Network != network {
			continue
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := m.collect(rec.ID, began); err != nil {
			errs = append(errs, fmt.Errorf("remove endpoint of %s: %w", rec.Key(), err))
		}
	}
	return errors.Join(errs...)
}

// collect removes an endpoint unless it is younger than the call that wants it gone.
func (m *Manager) collect(id string, began time.Time) error {
	unlock, free := m.endpoints.tryLock(id)
	if !free {
		return nil // being made or removed right now
	}
	defer unlock()
	rec, ok := m.record(id)
	if !ok || rec.Created.After(began) {
		return nil
	}
	m.log.Info("endpoint collected", "endpoint", rec.ID, "pod", rec.Key(), "addresses",
		rec.Addresses())
	return m.teardown(rec)
}

// RemoveAll removes every endpoint and every host-side veth of Weft's in this network
// namespace. It is for cleanup: pods lose their network.
func (m *Manager) RemoveAll(ctx context.Context) error {
	var errs []error
	for _, rec := range m.snapshot() {
		unlock := m.endpoints.lock(rec.ID)
		if rec, ok := m.record(rec.ID); ok {
			errs = append(errs, m.teardown(rec))
		}
		unlock()
	}
	errs = append(errs, m.removeOrphans())
	return errors.Join(errs...)
}

// teardown removes all that a record names and then the record. Each step may find its
// work done already, so it can be repeated from anywhere. Addresses and slot are free only
// after the last trace of the endpoint is gone, so nothing late can hit their next owner.
// Call with the endpoint locked.
func (m *Manager) teardown(rec record) error {
	if rec.State != StateGone {
		rec.State = StateDeleting
		m.remember(rec)
		if err := m.dismantle(rec); err != nil {
			return errors.Join(err, m.disk.save(rec))
		}
	}
	rec.State = StateGone
	m.remember(rec)
	if err := m.syncObject(rec.objectKey()); err != nil {
		return m.leaveTombstone(rec, err)
	}
	if err := m.step("unpublish"); err != nil {
		return err
	}
	if err := m.disk.remove(rec.ID); err != nil {
		return err
	}
	m.forget(rec)
	return m.step("forget")
}

// dismantle takes the interface and what the datapath has of it away, in this order: an interface
// that is there has its hooks. Another plugin's stays, and the datapath refuses what comes from it.
func (m *Manager) dismantle(rec record) error {
	if !rec.Chained {
		if err := netdev.DeleteOnNode(rec.HostIf); err != nil {
			return err
		}
	}
	if err := m.step("unlink"); err != nil {
		return err
	}
	if m.opt.Datapath != nil {
		if err := m.opt.Datapath.DetachEndpoint(rec.Datapath()); err != nil {
			return fmt.Errorf("detach datapath: %w", err)
		}
	}
	return m.step("detach")
}

// leaveTombstone keeps only the name of an object that could not be deleted, for Sync.
func (m *Manager) leaveTombstone(rec record, cause error) error {
	m.log.Warn("endpoint removed but still published, will try again", "pod", rec.objectKey(),
		"err", cause)
	if err := m.disk.save(rec); err != nil {
		return err
	}
	m.mu.Lock()
	m.release(rec)
	m.mu.Unlock()
	m.retryLater(rec.objectKey())
	return nil
}

// forget drops the record from memory and frees what it held.
func (m *Manager) forget(rec record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.release(rec)
	delete(m.records, rec.ID)
	delete(m.unattached, rec.ID)
	delete(m.unseen, rec.ID)
}
