package endpoint

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/nldump"
)

// removeOrphans deletes host-side veths of Weft's that no record names, with their hooks.
func (m *Manager) removeOrphans() error {
	h, err := netdev.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := nldump.Whole(h.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, link := range links {
		a := link.Attrs()
		if !isHostSide(link) {
			continue
		}
		first := HostIfPrefix + hostIfPattern.FindStringSubmatch(a.Name)[1]
		known := slices.ContainsFunc(m.snapshot(),
			func(r record) bool { return r.State != StateGone && r.HostIf == first })
		if !known {
			m.log.Info("removing an interface that no record names", "interface", a.Name)
			errs = append(errs, netdev.Delete(h, a.Name))
		}
	}
	return errors.Join(errs...)
}

// isHostSide tells whether Weft made an interface, by kind, name and address.
func isHostSide(link netlink.Link) bool {
	a := link.Attrs()
	return netdev.Veth.Is(link) && hostIfPattern.MatchString(a.Name) &&
		bytes.Equal(a.HardwareAddr, GatewayMAC)
}

// deleteHostLinks removes the host sides of one endpoint, which may be gone already.
func deleteHostLinks(hostIf string) error {
	return errors.Join(netdev.DeleteOnNode(hostIf),
		netdev.DeleteOnNode(netdev.SecondHostIf(hostIf)))
}

// setHostUp sets an interface of the node up.
func setHostUp(name string) error {
	link, err := netdev.FindOnNode(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
