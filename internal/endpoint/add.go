package endpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"weft.dev/weft/api/v1alpha1"
)

// Add makes an endpoint, or returns the one that is there if it is as it should be.
// A damaged one is made anew, with its old addresses if they are still free. After an
// error nothing is left behind; what could not be taken away is left to Del and Restore.
func (m *Manager) Add(ctx context.Context, req AddRequest) (*AddResult, error) {
	if err := req.normalise(); err != nil {
		return nil, err
	}
	if m.opt.Datapath == nil {
		return nil, fmt.Errorf("%w: no datapath", ErrUnavailable)
	}
	ns, err := openNetNS(req.NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	defer m.endpoints.lock(req.ID())()
	began := time.Now()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	old, exists := m.record(req.ID())
	if exists {
		err := m.matches(old, req, ns)
		if errors.Is(err, errDatapath) {
			// The interface is as it should be: only its hooks or map entries are not.
			err = errors.Join(m.repair(&old), m.matches(old, req, ns))
		}
		if err == nil {
			return m.result(old), nil
		}
		if old.State == StateReady {
			m.log.Warn("endpoint is damaged, making it anew", "endpoint", old.ID, "pod", old.Key(),
				"err", err)
		}
		if err := m.teardown(old); err != nil {
			return nil, fmt.Errorf("remove damaged endpoint: %w", err)
		}
	}
	rec, err := m.draft(req, ns)
	if err != nil {
		return nil, err
	}
	if err := m.reserve(&rec, req, old.Addresses()); err != nil {
		return nil, err
	}
	if err := m.build(ctx, &rec, ns); err != nil {
		return nil, errors.Join(fmt.Errorf("make endpoint for %s: %w", rec.Key(), err),
			m.teardown(rec))
	}
	m.log.Info("endpoint added", "endpoint", rec.ID, "pod", rec.Key(), "addresses", rec.Addresses(),
		"interface", rec.HostIf, "took", time.Since(began).Round(time.Microsecond))
	return m.result(rec), nil
}

// matches says why an existing endpoint is not what the request asks for, nil if it is.
func (m *Manager) matches(old record, req AddRequest, ns *os.File) error {
	switch {
	case old.State != StateReady:
		return fmt.Errorf("it is %s", old.State)
	case old.Chained != req.Chained:
		return errors.New("it was made for another kind of plugin chain")
	case old.NetworkID != req.NetworkID:
		return fmt.Errorf("it is in network %d", old.NetworkID)
	}
	for _, a := range req.Addresses {
		if !slices.Contains(old.Addresses(), a) {
			return fmt.Errorf("it does not have address %s", a)
		}
	}
	for _, a := range old.More {
		if len(req.Addresses) > 0 && !slices.Contains(req.Addresses, a) {
			return fmt.Errorf("it has address %s besides", a)
		}
	}
	return m.verify(old, ns)
}

// draft is the endpoint to be, without slot and addresses.
func (m *Manager) draft(req AddRequest, ns *os.File) (record, error) {
	rec := record{Boot: m.boot, Info: Info{
		ID: req.ID(), ContainerID: req.ContainerID, IfName: req.IfName, Network: req.Network,
		NetworkID: req.NetworkID,
		Namespace: req.Namespace, Pod: req.Pod, PodUID: req.PodUID,
		HostIf: req.HostIf(), NetNS: req.NetNS, PodIf: req.IfName,
		MAC: randomMAC().String(), GatewayMAC: GatewayMAC.String(), MTU: m.opt.MTU,
		Chained: req.Chained, CNIDatapath: req.PodDatapath, State: StateCreating,
		Created: time.Now().UTC(),
	}}
	rec.ExtraLabels = req.Labels
	pod, err := m.declared(rec.Info)
	if err != nil {
		// Without labels and service account it would be somebody else.
		return rec, fmt.Errorf("%w: who pod %s is cannot be found out: %w", ErrUnavailable,
			rec.Key(), err)
	}
	rec.declare(pod)
	if err := m.identify(&rec); err != nil {
		// The pod can live without, on its own node; Sync goes on trying.
		m.log.Warn("endpoint has no identity yet, its packets to other nodes are refused", "pod",
			rec.Key(), "err", err)
		m.retryLater("")
	}
	if req.Chained {
		return rec, adoptChained(&rec.Info, ns)
	}
	return rec, nil
}

func (m *Manager) declared(info Info) (*v1alpha1.Pod, error) {
	if m.opt.PodSpec == nil {
		return nil, nil
	}
	return m.opt.PodSpec(info.Key(), info.PodUID)
}

// identify gives the record the number of its namespace, service account and labels, or changes
// nothing.
func (m *Manager) identify(rec *record) error {
	if m.opt.Identity == nil {
		return nil
	}
	number, err := m.opt.Identity(rec.Namespace, rec.ServiceAccount, rec.Labels)
	if err != nil {
		return fmt.Errorf("identity of %s: %w", rec.Key(), err)
	}
	rec.Identity = number
	return nil
}

// declare takes labels, service account and annotations from the declared pod, the request's labels
// on top.
func (r *record) declare(pod *v1alpha1.Pod) {
	if pod != nil || r.ServiceAccount == "" {
		r.ServiceAccount = "default"
	}
	if pod == nil && r.Encrypt == v1alpha1.EncryptFalse {
		r.Encrypt = ""
	}
	// A declaration that is gone may be one that a mistake made unusable: what asked to be
	// sealed stays so for as long as it lives, and a pod keeps its interfaces, its service account,
	// and the labels by which policies select it, with its named ports.
	if pod != nil {
		r.Labels, r.Ports = maps.Clone(pod.Metadata.Labels), slices.Clone(pod.Spec.Ports)
		r.Encrypt = pod.Metadata.Annotations[v1alpha1.EncryptAnnotation]
		r.PodDatapath = pod.Metadata.Annotations[v1alpha1.DatapathAnnotation]
		if pod.Spec.ServiceAccount != "" {
			r.ServiceAccount = pod.Spec.ServiceAccount
		}
	}
	if len(r.ExtraLabels) > 0 {
		// Never in the map of before: others read it.
		if r.Labels = maps.Clone(r.Labels); r.Labels == nil {
			r.Labels = map[string]string{}
		}
		maps.Copy(r.Labels, r.ExtraLabels)
	}
}

// build makes what the record says, and then calls it ready.
func (m *Manager) build(ctx context.Context, rec *record, ns *os.File) error {
	if err := m.done(ctx, "record"); err != nil {
		return err
	}
	if rec.Chained {
		if err := m.attach(*rec); err != nil {
			return err
		}
		// The plugin sets it down when an ADD has failed.
		if err := setHostUp(rec.HostIf); err != nil {
			return err
		}
		if err := m.done(ctx, "attach"); err != nil {
			return err
		}
	} else if err := m.buildVeth(ctx, *rec, ns); err != nil {
		return err
	}
	ready := *rec
	ready.State = StateReady
	if err := m.disk.save(ready); err != nil {
		return err
	}
	*rec = ready
	m.remember(ready)
	if err := m.done(ctx, "ready"); err != nil {
		return err
	}
	m.publish(rec.objectKey())
	return m.done(ctx, "publish")
}

// buildVeth makes the pair. The node's end is not up before its hooks are there.
func (m *Manager) buildVeth(ctx context.Context, rec record, ns *os.File) error {
	v, err := openVeth(rec.Info, ns)
	if err != nil {
		return err
	}
	defer v.close()
	for _, step := range []struct {
		name string
		do   func() error
	}{{"veth", v.create}, {"host", v.configureHost},
		{"attach", func() error { return m.attach(rec) }}, {"up", v.raiseHost},
		{"pod", v.configurePod}} {
		if err := step.do(); err != nil {
			return err
		}
		if err := m.done(ctx, step.name); err != nil {
			return err
		}
	}
	return nil
}

// attach hooks the interface and enters it into the maps.
func (m *Manager) attach(rec record) error {
	began := time.Now()
	if err := m.attachNow(rec); err != nil {
		return fmt.Errorf("attach datapath: %w", err)
	}
	m.log.Debug("datapath attached", "endpoint", rec.ID, "took",
		time.Since(began).Round(time.Microsecond))
	return nil
}

func (m *Manager) result(rec record) *AddResult {
	out := &AddResult{Info: rec.Info}
	if rec.Chained {
		return out
	}
	if rec.IPv4.IsValid() {
		out.Routes = append(out.Routes,
			Route{Dst: netip.PrefixFrom(GatewayIPv4, 32)},
			Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: GatewayIPv4})
	}
	if rec.IPv6.IsValid() {
		out.Routes = append(out.Routes,
			Route{Dst: netip.MustParsePrefix("::/0"), Gateway: GatewayIPv6})
	}
	return out
}

// randomMAC returns a locally administered unicast address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails, says crypto/rand
	mac[0] = mac[0]&^1 | 2
	return mac
}
