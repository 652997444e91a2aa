package endpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netdev"
)

// Mend looks whether anything of the ready endpoints on the node's side is missing that others can
// take away, such as a route, a neighbour or a hook, and puts those endpoints in order. An
// interface that is down stays so, and one that is gone is for Del. With names it looks at the
// endpoints that have these interfaces on the node alone.
func (m *Manager) Mend(ctx context.Context, hostIfs ...string) error {
	// Records before the tables: what is ready by now has its routes in them.
	list := slices.DeleteFunc(m.snapshot(), func(rec record) bool {
		return rec.State != StateReady || len(hostIfs) > 0 &&
			!slices.Contains(hostIfs, rec.HostIf) &&
			!slices.Contains(hostIfs, netdev.SecondHostIf(rec.HostIf))
	})
	if len(list) == 0 {
		return ctx.Err()
	}
	h, err := netdev.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	tables, err := m.tables(h)
	if err != nil {
		return err
	}
	var errs []error
	for _, rec := range list {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, m.mend(rec.ID, h, tables))
	}
	return errors.Join(errs...)
}

// lockReady locks an endpoint. unlock is nil if it is not ready, or an Add or Del is at it, which
// will leave it right.
func (m *Manager) lockReady(id string) (rec record, unlock func()) {
	unlock, free := m.endpoints.tryLock(id)
	if !free {
		return rec, nil
	}
	rec, ok := m.record(id)
	if !ok || rec.State != StateReady {
		unlock()
		return rec, nil
	}
	return rec, unlock
}

func (m *Manager) mend(id string, h *netlink.Handle, tables *hostTables) error {
	rec, unlock := m.lockReady(id)
	if unlock == nil {
		return nil
	}
	defer unlock()
	damage := m.damage(rec, h, tables)
	if damage == nil || errors.Is(damage, netdev.ErrGone) {
		return nil
	}
	m.log.Warn("endpoint is damaged, mending it", "endpoint", rec.ID, "pod", rec.Key(), "err",
		damage)
	if err := m.order(rec); err != nil {
		m.retryLater("")
		return fmt.Errorf("mend endpoint of %s: %w", rec.Key(), err)
	}
	return nil
}

// damage compares the node's side of an endpoint with its record.
func (m *Manager) damage(rec record, h *netlink.Handle, tables *hostTables) error {
	outer, err := netdev.Find(h, rec.HostIf, "on the node")
	if err != nil {
		return err
	}
	errs := []error{m.verifyDatapath(rec)}
	if v := (&veth{Info: rec.Info, host: h}); !rec.Chained && netdev.IsUp(outer) {
		errs = append(errs, v.verifyHostRoutes(outer, tables), v.verifyNeighbours(outer, tables))
	}
	if rec.Chained {
		errs = append(errs, verifyGateway(rec.Info, outer))
	}
	return errors.Join(errs...)
}

// Problems says what does not work although no call fails for it.
func (m *Manager) Problems() []string {
	var out []string
	for _, path := range m.disk.damaged() {
		out = append(out,
			fmt.Sprintf("endpoint record %s could not be read: the pod's interface was removed, or if another plugin made it, all that comes from it is refused; remove the file once the pod is gone", path))
	}
	return out
}
