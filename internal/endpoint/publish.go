package endpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"weft.dev/weft/api/v1alpha1"
)

// retryInterval is how long after a failure Sync runs by itself.
const retryInterval = 5 * time.Second

// publish makes the directory agree and leaves a failure to Sync.
func (m *Manager) publish(key string) {
	if err := m.syncObject(key); err != nil {
		m.log.Warn("endpoint not published, will try again", "pod", key, "err", err)
		m.retryLater(key)
	}
}

// syncObject makes the published object what the records say now: that of the newest
// ready endpoint with this key, or none. It does not ask what changed, so an old pod's
// removal that comes late cannot delete the object of its successor of the same name.
func (m *Manager) syncObject(key string) error {
	if m.opt.Directory == nil {
		return nil
	}
	defer m.objects.lock(key)()
	if rec, ok := m.publisher(key); ok {
		return m.opt.Directory.PutEndpoint(m.object(rec))
	}
	return m.opt.Directory.DeleteEndpoint(key)
}

// publisher is the endpoint whose object has the key.
func (m *Manager) publisher(key string) (record, bool) {
	var newest record
	for _, rec := range m.snapshot() {
		// Other nodes cannot reach those of other networks than the cluster's, and their addresses
		// mean others there.
		if rec.State == StateReady && rec.objectKey() == key && rec.NetworkID == 0 {
			newest = rec
		}
	}
	return newest, newest.ID != ""
}

func (m *Manager) object(rec record) *v1alpha1.Endpoint {
	ep := &v1alpha1.Endpoint{
		TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindEndpoint},
		Metadata: v1alpha1.ObjectMeta{Name: rec.Object, Namespace: rec.Namespace,
			Labels: maps.Clone(rec.Labels)},
		Spec: v1alpha1.EndpointSpec{
			NodeName: m.opt.NodeName, ServiceAccount: rec.ServiceAccount,
			Addresses: rec.Addresses(), MAC: rec.MAC, Ports: slices.Clone(rec.Ports),
		},
		Status: v1alpha1.EndpointStatus{Phase: v1alpha1.EndpointReady, Identity: rec.Identity},
	}
	if rec.Encrypt != "" {
		// A pod's further interfaces have objects of other names: they must tell it themselves.
		ep.Metadata.Annotations = map[string]string{v1alpha1.EncryptAnnotation: rec.Encrypt}
	}
	return ep
}

// retryLater has Sync run soon for an object key, or for nothing in particular if empty.
func (m *Manager) retryLater(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if key != "" {
		m.unpublished[key] = true
	}
	if m.retry == nil {
		m.retry = time.AfterFunc(retryInterval, m.retrySync)
	}
}

func (m *Manager) retrySync() {
	m.mu.Lock()
	m.retry = nil
	m.mu.Unlock()
	if err := m.Sync(context.Background()); err != nil {
		m.log.Warn("endpoints still not in order, will try again", "err", err)
	}
}

// Sync follows changed pod declarations (labels, service account) and tries again what
// failed before: publishing, unpublishing, attaching. The agent calls it when the objects
// directory changed; after a failure it also runs by itself.
func (m *Manager) Sync(ctx context.Context) error {
	var errs []error
	for _, rec := range m.snapshot() {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if rec.State == StateReady {
			errs = append(errs, m.syncEndpoint(rec.ID))
		}
	}
	m.mu.Lock()
	keys := maps.Clone(m.unpublished)
	m.mu.Unlock()
	for key := range keys {
		errs = append(errs, m.republish(key))
	}
	err := errors.Join(errs...)
	if err != nil {
		m.retryLater("")
	}
	return err
}

// syncEndpoint attaches an endpoint that is not and follows its declaration.
func (m *Manager) syncEndpoint(id string) error {
	rec, unlock := m.lockReady(id)
	if unlock == nil {
		return nil
	}
	defer unlock()
	err := m.reattach(rec)
	rec, ok := m.record(id)
	if !ok || rec.State != StateReady {
		return err // it was found to be gone
	}
	return errors.Join(err, m.redeclare(rec))
}

func (m *Manager) reattach(rec record) error {
	m.mu.Lock()
	_, failed := m.unattached[rec.ID]
	m.mu.Unlock()
	if !failed {
		return nil
	}
	if err := m.order(rec); err != nil {
		return fmt.Errorf("put endpoint of %s in order: %w", rec.Key(), err)
	}
	return nil
}

// noteAttach remembers which endpoints have no datapath, and why.
func (m *Manager) noteAttach(id string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.unattached[id] = err
	} else {
		delete(m.unattached, id)
	}
}

// redeclare follows the pod's declaration. An endpoint whose service account or labels change takes
// the new identity, or none while that cannot be had: never another's. One whose datapath changes
// goes over under traffic.
func (m *Manager) redeclare(rec record) error {
	old := rec
	pod, err := m.declared(rec.Info)
	if err != nil {
		return fmt.Errorf("declaration of pod %s, which stays as it was: %w", rec.Key(), err)
	}
	rec.declare(pod)
	if rec.ServiceAccount != old.ServiceAccount || !maps.Equal(rec.Labels, old.Labels) {
		rec.Identity = 0
	}
	errIdentity := m.identify(&rec)
	if maps.Equal(old.Labels, rec.Labels) && slices.Equal(old.Ports, rec.Ports) &&
		old.ServiceAccount == rec.ServiceAccount && old.Encrypt == rec.Encrypt &&
		old.PodDatapath == rec.PodDatapath && old.Identity == rec.Identity {
		return errIdentity
	}
	if err := m.disk.save(rec); err != nil {
		return errors.Join(errIdentity, err)
	}
	m.remember(rec)
	if (old.Identity != rec.Identity || old.XDPDatapath() != rec.XDPDatapath()) &&
		m.opt.Datapath != nil {
		err := m.attachNow(rec)
		m.noteAttach(rec.ID, err)
		if err != nil {
			errIdentity = errors.Join(errIdentity,
				fmt.Errorf("attach datapath to %s: %w", rec.Key(), err))
		}
	}
	m.publish(rec.objectKey())
	return errIdentity
}

// republish tries an object again and clears the tombstones that waited for it.
func (m *Manager) republish(key string) error {
	if err := m.syncObject(key); err != nil {
		return fmt.Errorf("publish %s: %w", key, err)
	}
	m.mu.Lock()
	delete(m.unpublished, key)
	m.mu.Unlock()
	var errs []error
	for _, rec := range m.snapshot() {
		if rec.State == StateGone && rec.objectKey() == key {
			errs = append(errs, m.bury(rec.ID))
		}
	}
	return errors.Join(errs...)
}

// bury removes a tombstone.
func (m *Manager) bury(id string) error {
	unlock, free := m.endpoints.tryLock(id)
	if !free {
		return nil
	}
	defer unlock()
	rec, ok := m.record(id)
	if !ok || rec.State != StateGone {
		return nil
	}
	if err := m.disk.remove(id); err != nil {
		return err
	}
	m.forget(rec)
	return nil
}
