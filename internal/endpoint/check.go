package endpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/nldump"
)

// Check verifies that an endpoint is as Add made it, in the pod and on the node. The
// error is ErrNotFound, or ErrUnhealthy with every fault in it.
func (m *Manager) Check(ctx context.Context, req CheckRequest) error {
	if err := req.validate(); err != nil {
		return err
	}
	defer m.endpoints.lock(req.ID())()
	rec, ok := m.record(req.ID())
	if !ok || rec.State == StateGone {
		return fmt.Errorf("%w: container %s has no interface %s here: run ADD", ErrNotFound,
			req.ContainerID, req.IfName)
	}
	if rec.State != StateReady {
		return fmt.Errorf("%w: it is %s: run DEL and ADD", ErrUnhealthy, rec.State)
	}
	for _, a := range req.Addresses {
		if !slices.Contains(rec.Addresses(), a) {
			return fmt.Errorf("%w: address %s is not the endpoint's, which has %v: run DEL and ADD",
				ErrUnhealthy, a, rec.Addresses())
		}
	}
	path := req.NetNS
	if path == "" {
		path = rec.NetNS
	}
	ns, err := openNetNS(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	err = m.verify(rec, ns)
	if errors.Is(err, errDatapath) {
		m.noteAttach(rec.ID, err)
		m.retryLater("") // Sync puts it in order
	}
	if err != nil {
		return fmt.Errorf("%w: %w: run DEL and ADD, or restart the agent", ErrUnhealthy, err)
	}
	return nil
}

// errDatapath is in the error when hooks or map entries of an endpoint are missing: its packets
// pass unfiltered, or not at all.
var errDatapath = errors.New("datapath is not attached")

// verify compares everything that a record says with what is there.
func (m *Manager) verify(rec record, ns *os.File) error {
	v, err := openVeth(rec.Info, ns)
	if err != nil {
		return err
	}
	defer v.close()
	outer, err := netdev.Find(v.host, rec.HostIf, "on the node")
	if err != nil {
		return err
	}
	inner, err := netdev.Find(v.pod, rec.PodIf, "in the pod")
	if err != nil {
		return err
	}
	errs := []error{v.verifyLinks(inner, outer), v.verifyAddresses(inner)}
	if rec.Chained {
		errs = append(errs, verifyGateway(rec.Info, outer))
	} else {
		errs = append(errs, v.verifyPodRoutes(inner), v.verifyHostSide(outer))
	}
	return errors.Join(append(errs, m.verifyDatapath(rec))...)
}

// verifyDatapath asks the datapath for the endpoint's hooks and map entries.
func (m *Manager) verifyDatapath(rec record) error {
	m.mu.Lock()
	failed := m.unattached[rec.ID]
	m.mu.Unlock()
	if m.opt.Datapath != nil {
		if err := m.opt.Datapath.CheckEndpoint(rec.Datapath()); err != nil {
			return fmt.Errorf("%w: %w", errDatapath, err)
		}
	}
	if failed != nil && !errors.Is(failed, errDatapath) {
		return fmt.Errorf("%w: %w", errDatapath, failed)
	}
	return nil
}

func (v *veth) verifyLinks(inner, outer netlink.Link) error {
	var errs []error
	add := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	in, out := inner.Attrs(), outer.Attrs()
	add(!netdev.Veth.Ends(inner, outer), "%s in the pod and %s are not two ends of one veth",
		in.Name, out.Name)
	add(in.HardwareAddr.String() != v.MAC, "%s in the pod has MAC %s instead of %s", in.Name,
		in.HardwareAddr, v.MAC)
	add(!netdev.IsUp(inner), "%s in the pod is down", in.Name)
	add(!netdev.IsUp(outer), "%s on the node is down", out.Name)
	if !v.Chained {
		add(out.HardwareAddr.String() != v.GatewayMAC, "%s has MAC %s instead of the gateway's %s",
			out.Name, out.HardwareAddr, v.GatewayMAC)
		add(in.MTU > v.MTU, "%s in the pod has MTU %d instead of %d", in.Name, in.MTU, v.MTU)
	}
	return errors.Join(errs...)
}

func (v *veth) verifyAddresses(inner netlink.Link) error {
	have, err := nldump.Whole(func() ([]netlink.Addr, error) {
		return v.pod.AddrList(inner,
			netlink.FAMILY_ALL)
	})
	if err != nil {
		return fmt.Errorf("list addresses in pod: %w", err)
	}
	var errs []error
	for _, want := range v.Addresses() {
		if !slices.ContainsFunc(have,
			func(a netlink.Addr) bool { return a.IP.Equal(want.AsSlice()) }) {
			errs = append(errs, fmt.Errorf("address %s is missing on %s in the pod", want, v.PodIf))
		}
	}
	return errors.Join(errs...)
}

func (v *veth) verifyPodRoutes(inner netlink.Link) error {
	have, err := routesOf(v.pod, inner)
	if err != nil {
		return fmt.Errorf("list routes in pod: %w", err)
	}
	var errs []error
	for _, want := range v.podRoutes(inner) {
		if !hasRoute(have, want) {
			errs = append(errs, fmt.Errorf("route %s is missing in the pod", describe(want)))
		}
	}
	return errors.Join(errs...)
}

// hostTables are the node's routes and neighbours by interface.
type hostTables struct {
	routes     map[int][]netlink.Route
	neighbours map[int][]netlink.Neigh
}

// readHost reads the tables whole: the kernel, or the library, gives those of one interface by a
// walk through all of them, too.
func readHost(h *netlink.Handle) (*hostTables, error) {
	routes, err := nldump.Whole(func() ([]netlink.Route, error) {
		return h.RouteList(nil,
			netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	neighbours, err := nldump.Whole(func() ([]netlink.Neigh, error) {
		return h.NeighList(0,
			netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	t := &hostTables{map[int][]netlink.Route{}, map[int][]netlink.Neigh{}}
	for _, r := range routes {
		t.routes[r.LinkIndex] = append(t.routes[r.LinkIndex], r)
	}
	for _, n := range neighbours {
		t.neighbours[n.LinkIndex] = append(t.neighbours[n.LinkIndex], n)
	}
	return t, nil
}

func (v *veth) verifyHostSide(outer netlink.Link) error {
	tables, err := readHost(v.host)
	if err != nil {
		return err
	}
	return errors.Join(v.verifyHostRoutes(outer, tables), v.verifyNeighbours(outer, tables))
}

func (v *veth) verifyHostRoutes(outer netlink.Link, tables *hostTables) error {
	have := tables.routes[outer.Attrs().Index]
	var errs []error
	for _, a := range v.hostAddresses() {
		if want := hostRoute(outer, a); !hasRoute(have, want) {
			errs = append(errs,
				fmt.Errorf("route %s dev %s is missing on the node", describe(want), v.HostIf))
		}
	}
	return errors.Join(errs...)
}

func (v *veth) verifyNeighbours(outer netlink.Link, tables *hostTables) error {
	have := tables.neighbours[outer.Attrs().Index]
	mac, err := net.ParseMAC(v.MAC)
	if err != nil {
		return fmt.Errorf("pod MAC: %w", err)
	}
	var errs []error
	for _, a := range v.hostAddresses() {
		ok := slices.ContainsFunc(have, func(n netlink.Neigh) bool {
			return n.IP.Equal(a.AsSlice()) && n.State&netlink.NUD_PERMANENT != 0 &&
				bytes.Equal(n.HardwareAddr, mac)
		})
		if !ok {
			errs = append(errs,
				fmt.Errorf("permanent neighbour %s dev %s is missing on the node", a, v.HostIf))
		}
	}
	return errors.Join(errs...)
}

func routesOf(h *netlink.Handle, link netlink.Link) ([]netlink.Route, error) {
	return nldump.Whole(func() ([]netlink.Route, error) {
		return h.RouteList(link,
			netlink.FAMILY_ALL)
	})
}

func hasRoute(have []netlink.Route, want *netlink.Route) bool {
	return slices.ContainsFunc(have, func(r netlink.Route) bool {
		return prefixOf(r.Dst, r.Family) == prefixOf(want.Dst, 0) && r.Gw.Equal(want.Gw)
	})
}

// prefixOf makes destinations comparable; the kernel's default route may have none.
func prefixOf(n *net.IPNet, fam int) netip.Prefix {
	if n == nil {
		if fam == netlink.FAMILY_V6 {
			return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if size == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, bits)
}

func describe(r *netlink.Route) string {
	if r.Gw != nil {
		return fmt.Sprintf("%s via %s", r.Dst, r.Gw)
	}
	return r.Dst.String()
}
