package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
)

// CheckEndpoint says what of AttachEndpoint's work is not there: a hook on the node's side, or an
// entry in the maps. It changes nothing.
func (d *Datapath) CheckEndpoint(ep Endpoint) error {
	host, err := netlink.LinkByName(ep.HostIf)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", ep.HostIf, err)
	}
	index := host.Attrs().Index
	errs := []error{d.links().Check(ep.HostIf, index, d.hooksFor(ep)),
		d.checkEntries(ep, uint32(index)), d.checkGateway(ep, index)}
	if d.hasXDPDatapath(ep) {
		errs = append(errs, d.checkSecondInterface(ep))
	}
	return errors.Join(errs...)
}

func (d *Datapath) checkSecondInterface(ep Endpoint) error {
	name := netdev.SecondHostIf(ep.HostIf)
	second, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	index := second.Attrs().Index
	return errors.Join(d.links().Check(name, index, d.progs.At(hook.Second, hook.ByTC)),
		d.checkInterface(ep, uint32(index)))
}

// checkEntries compares the entries of an endpoint's interface and addresses with it.
func (d *Datapath) checkEntries(ep Endpoint, ifindex uint32) error {
	errs := []error{d.checkInterface(ep, ifindex)}
	for _, a := range ep.Addresses() {
		var entry bpf.Endpoint
		key := bpf.AddrKeyOf(ep.Network, a)
		if err := d.maps.EpAddr.Lookup(&key, &entry); err != nil || entry.Slot != ep.Slot ||
			entry.Ifindex != ifindex {
			errs = append(errs,
				fmt.Errorf("address %s does not lead to %s in the maps", a, ep.HostIf))
		}
	}
	return errors.Join(errs...)
}

func (d *Datapath) checkInterface(ep Endpoint, ifindex uint32) error {
	var entry bpf.Endpoint
	if err := d.maps.EpIf.Lookup(ifindex, &entry); err != nil || entry.Slot != ep.Slot {
		return fmt.Errorf("interface %d does not belong to %s in the maps", ifindex, ep.HostIf)
	}
	return nil
}
