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
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/netdev"
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
			m.log.Warn("endpoint is damaged, making it anew", "endpoint", old.ID, "pod", old.Key(), "err", err)
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
		return nil, errors.Join(fmt.Errorf("make endpoint for %s: %w", rec.Key(), err), m.teardown(rec))
	}
	m.log.Info("endpoint added", "endpoint", rec.ID, "pod", rec.Key(), "addresses", rec.Addresses(), "interface", rec.HostIf, "took", time.Since(began).Round(time.Microsecond))
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
		ID: req.ID(), ContainerID: req.ContainerID, IfName: req.IfName, Network: req.Network, NetworkID: req.NetworkID,
		Namespace: req.Namespace, Pod: req.Pod, PodUID: req.PodUID,
		HostIf: req.HostIf(), NetNS: req.NetNS, PodIf: req.IfName,
		MAC: randomMAC().String(), GatewayMAC: GatewayMAC.String(), MTU: m.opt.MTU,
		Chained: req.Chained, CNIDatapath: req.PodDatapath, State: StateCreating, Created: time.Now().UTC(),
	}}
	rec.ExtraLabels = req.Labels
	rec.declare(m.declared(rec.Key()))
	if err := m.identify(&rec); err != nil {
		// The pod can live without, on its own node; Sync goes on trying.
		m.log.Warn("endpoint has no identity yet, its packets to other nodes are refused", "pod", rec.Key(), "err", err)
		m.retryLater("")
	}
	if req.Chained {
		return rec, adoptChained(&rec.Info, ns)
	}
	return rec, nil
}

func (m *Manager) declared(key string) *v1alpha1.Pod {
	if m.opt.PodSpec == nil {
		return nil
	}
	return m.opt.PodSpec(key)
}

// identify gives the record the number of its namespace and service account, or changes nothing.
func (m *Manager) identify(rec *record) error {
	if m.opt.Identity == nil {
		return nil
	}
	number, err := m.opt.Identity(rec.Namespace, rec.ServiceAccount)
	if err != nil {
		return fmt.Errorf("identity of %s: %w", rec.Key(), err)
	}
	rec.Identity = number
	return nil
}

// declare takes labels, service account and annotations from the declared pod, the request's labels on top.
func (r *record) declare(pod *v1alpha1.Pod) {
	r.Labels, r.ServiceAccount = nil, "default"
	if pod == nil && r.Encrypt == v1alpha1.EncryptFalse {
		r.Encrypt = ""
	}
	// A declaration that is gone may be one that a mistake made unusable: what asked to be
	// sealed stays so for as long as it lives, and a pod keeps its interfaces.
	if pod != nil {
		r.Labels = maps.Clone(pod.Metadata.Labels)
		r.Encrypt = pod.Metadata.Annotations[v1alpha1.EncryptAnnotation]
		r.PodDatapath = pod.Metadata.Annotations[v1alpha1.DatapathAnnotation]
		if pod.Spec.ServiceAccount != "" {
			r.ServiceAccount = pod.Spec.ServiceAccount
		}
	}
	if len(r.ExtraLabels) > 0 && r.Labels == nil {
		r.Labels = map[string]string{}
	}
	maps.Copy(r.Labels, r.ExtraLabels)
}

// reserve gives the draft its slot and addresses and writes it ahead of everything else.
func (m *Manager) reserve(rec *record, req AddRequest, preferred []netip.Addr) error {
	fixed := req.Addresses
	if pod := m.declared(rec.Key()); len(fixed) == 0 && pod != nil {
		fixed = pod.Spec.Addresses
		if err := checkFixed(fixed); err != nil {
			return fmt.Errorf("declared addresses of pod %s: %w", rec.Key(), err)
		}
	}
	if rec.Chained {
		m.reclaim(fixed)
	}
	if err := m.allocate(rec, fixed, preferred); err != nil {
		return fmt.Errorf("addresses for %s: %w", rec.Key(), err)
	}
	if err := m.disk.save(*rec); err != nil {
		m.forget(*rec)
		return err
	}
	return nil
}

// allocate fills slot and addresses, and puts the record among the others; or changes nothing.
func (m *Manager) allocate(rec *record, fixed, preferred []netip.Addr) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if other, taken := m.records[rec.ID]; taken && other.State != StateGone {
		return fmt.Errorf("endpoint ID %s already belongs to container %s", rec.ID, other.ContainerID)
	}
	defer func() {
		if err != nil {
			m.release(*rec)
		}
	}()
	if rec.Slot, err = m.slots.Next(rec.ID); err != nil {
		return err
	}
	for _, f := range m.families(*rec, fixed) {
		if err := m.addresses(rec, f, fixed, preferred); err != nil {
			return err
		}
	}
	if len(rec.Addresses()) == 0 {
		return fmt.Errorf("%w: this node has no range of a family that it can use: set ipam.ranges or the Node object's podCIDRs", ErrUnavailable)
	}
	rec.Object = m.objectName(*rec)
	m.records[rec.ID] = *rec
	m.disk.saveCursors(cursors{m.nets.Of(0).Cursor(ipam.IPv4), m.nets.Of(0).Cursor(ipam.IPv6), m.slots.Cursor()})
	return nil
}

// families are those that the endpoint gets: what there are ranges for and the kernel
// can do, and what is asked for by address.
func (m *Manager) families(rec record, fixed []netip.Addr) []ipam.Family {
	var out []ipam.Family
	for _, f := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
		asked := slices.ContainsFunc(fixed, func(a netip.Addr) bool { return ipam.FamilyOf(a) == f })
		usable := m.nets.Of(rec.NetworkID).Has(f) && (f == ipam.IPv4 || netdev.HasIPv6())
		if asked || usable && !rec.Chained {
			out = append(out, f)
		}
	}
	return out
}

// addresses gives the record those of a family: all that are asked for, or one. Call with mu held.
func (m *Manager) addresses(rec *record, f ipam.Family, fixed, preferred []netip.Addr) error {
	asked := false
	for _, a := range fixed {
		if ipam.FamilyOf(a) != f {
			continue
		}
		if err := m.claim(*rec, a); err != nil {
			return err
		}
		rec.addAddress(a)
		asked = true
	}
	if asked {
		return nil
	}
	addr, err := m.anyAddress(*rec, f, preferred)
	if err == nil {
		rec.addAddress(addr)
	}
	return err
}

// claim takes an address that is asked for. Those of another network than the cluster's need not be
// in this node's ranges: nobody else has that network.
func (m *Manager) claim(rec record, a netip.Addr) error {
	pool := m.nets.Of(rec.NetworkID)
	switch {
	case rec.Chained:
		return m.described(pool.Adopt(rec.ID, a))
	case a.Is6() && !netdev.HasIPv6():
		return invalid("addresses", "%s: IPv6 is disabled on this node", a)
	case rec.NetworkID != 0:
		return m.described(pool.Adopt(rec.ID, a))
	}
	return m.described(pool.Claim(rec.ID, a))
}

func (m *Manager) anyAddress(rec record, f ipam.Family, preferred []netip.Addr) (netip.Addr, error) {
	pool := m.nets.Of(rec.NetworkID)
	for _, a := range preferred {
		if ipam.FamilyOf(a) == f && pool.Claim(rec.ID, a) == nil {
			return a, nil
		}
	}
	return pool.Next(rec.ID, f)
}

// described names the pod, rather than the ID, that has a taken address. Call with mu held.
func (m *Manager) described(err error) error {
	var taken *ipam.TakenError
	if errors.As(err, &taken) {
		if rec, ok := m.records[taken.Owner]; ok {
			return &ipam.TakenError{Addr: taken.Addr, Owner: "pod " + rec.Key() + " (container " + rec.ContainerID + ")"}
		}
	}
	return err
}

// objectName is the pod's name, with the interface's behind it for a further interface
// of the same container. Call with mu held.
func (m *Manager) objectName(rec record) string {
	for _, other := range m.records {
		if other.Key() == rec.Key() && other.ContainerID == rec.ContainerID && other.ID != rec.ID {
			return rec.Pod + "-" + shortName(rec.IfName)
		}
	}
	return rec.Pod
}

// reclaim removes endpoints that hold an address although their interface is gone: the
// plugin before us in the chain has seen the end of them and given the address again.
func (m *Manager) reclaim(addrs []netip.Addr) {
	for _, a := range addrs {
		m.mu.Lock()
		id, taken := m.nets.Of(0).Owner(a) // chained endpoints are all in the cluster's
		m.mu.Unlock()
		unlock, free := m.endpoints.tryLock(id)
		if !taken || !free {
			if free {
				unlock()
			}
			continue
		}
		if rec, ok := m.record(id); ok && rec.State == StateReady && !netdev.ExistsOnNode(rec.HostIf) {
			if err := m.teardown(rec); err != nil {
				m.log.Warn("remove endpoint without interface", "endpoint", id, "pod", rec.Key(), "err", err)
			}
		}
		unlock()
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
	}{{"veth", v.create}, {"host", v.configureHost}, {"attach", func() error { return m.attach(rec) }}, {"up", v.raiseHost}, {"pod", v.configurePod}} {
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
	if err := m.opt.Datapath.AttachEndpoint(rec.Datapath()); err != nil {
		return fmt.Errorf("attach datapath: %w", err)
	}
	m.log.Debug("datapath attached", "endpoint", rec.ID, "took", time.Since(began).Round(time.Microsecond))
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
		out.Routes = append(out.Routes, Route{Dst: netip.MustParsePrefix("::/0"), Gateway: GatewayIPv6})
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
