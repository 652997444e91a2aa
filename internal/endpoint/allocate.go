package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/netdev"
)

// reserve gives the draft its slot and addresses and writes it ahead of everything else.
func (m *Manager) reserve(rec *record, req AddRequest, preferred []netip.Addr) error {
	fixed := req.Addresses
	pod, err := m.declared(rec.Info)
	if err != nil {
		return fmt.Errorf("%w: declared addresses of pod %s: %w", ErrUnavailable, rec.Key(), err)
	}
	if len(fixed) == 0 && pod != nil {
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
		return fmt.Errorf("endpoint ID %s already belongs to container %s", rec.ID,
			other.ContainerID)
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
	m.disk.saveCursors(cursorsOf(m.nets, m.slots))
	return nil
}

// families are those that the endpoint gets: what there are ranges for and the kernel
// can do, and what is asked for by address.
func (m *Manager) families(rec record, fixed []netip.Addr) []ipam.Family {
	var out []ipam.Family
	for _, f := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
		asked := slices.ContainsFunc(fixed,
			func(a netip.Addr) bool { return ipam.FamilyOf(a) == f })
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

func (m *Manager) anyAddress(rec record, f ipam.Family,
	preferred []netip.Addr) (netip.Addr, error) {
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
			return &ipam.TakenError{Addr: taken.Addr,
				Owner: "pod " + rec.Key() + " (container " + rec.ContainerID + ")"}
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
		id, taken := m.nets.Owner(0, a) // chained endpoints are all in the cluster's
		m.mu.Unlock()
		unlock, free := m.endpoints.tryLock(id)
		if !taken || !free {
			if free {
				unlock()
			}
			continue
		}
		if rec, ok := m.record(id); ok && rec.State == StateReady &&
			!netdev.ExistsOnNode(rec.HostIf) {
			if err := m.teardown(rec); err != nil {
				m.log.Warn("remove endpoint without interface", "endpoint", id, "pod", rec.Key(),
					"err", err)
			}
		}
		unlock()
	}
}
