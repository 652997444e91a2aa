package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// attachUplinks hooks every uplink when the agent starts.
func (d *Datapath) attachUplinks() error {
	indexes := map[uint32]bool{}
	for _, name := range d.opts.Uplinks {
		l, err := d.findUplink(name)
		if err != nil {
			return fmt.Errorf("find uplink %s: %w (set uplinks in the agent's configuration)", name, err)
		}
		if err := d.attachUplink(l); err != nil {
			return err
		}
		indexes[uint32(l.Attrs().Index)] = true
	}
	return d.keepUplinks(indexes)
}

// attachUplink hooks one uplink. It can be called again, and for another interface of the same name.
func (d *Datapath) attachUplink(l netlink.Link) error {
	name, index := l.Attrs().Name, l.Attrs().Index
	if err := d.ensureHooks(name, index, d.uplinkHooks()); err != nil {
		return err
	}
	// The guard lets sealed packets pass by interfaces with hooks only.
	return errors.Join(d.putUplink(index), d.setUplinkOffloads(l), d.keepAdvertisements(name))
}

// followUplinks hooks those uplinks that have none: an interface that was removed and made again is
// another one to the kernel. It returns whether one was hooked.
func (d *Datapath) followUplinks() (attached bool) {
	if d.hold.isOn() {
		return false // what has no hooks is closed by the guard of before
	}
	problems, indexes := map[string]error{}, map[uint32]bool{}
	for _, name := range d.opts.Uplinks {
		l, err := d.findUplink(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			problems[name] = fmt.Errorf("uplink %s is missing: %w; it gets its hooks when it appears", name, err)
			continue
		}
		if err != nil {
			problems[name] = fmt.Errorf("uplink %s cannot be looked at: %w; its hooks stay as they are", name, err)
			if at, atErr := d.uplinkHookedAt(name); atErr != nil {
				problems[name] = errors.Join(problems[name], atErr)
			} else if at != 0 {
				indexes[uint32(at)] = true
			}
			continue
		}
		index := uint32(l.Attrs().Index)
		if d.hooked(name, l.Attrs().Index, d.uplinkHooks()) == nil {
			indexes[index] = true
			continue
		}
		if err := d.attachUplink(l); err != nil {
			problems[name] = fmt.Errorf("uplink %s is not hooked, nothing sealed can be opened on it: %w", name, err)
			continue
		}
		attached, indexes[index] = true, true
		d.log.Warn("uplink had no hooks, attached them", "interface", name, "index", l.Attrs().Index)
		d.host.note("uplink %s had lost its hooks (it was made anew?): attached them", name)
	}
	if err := d.keepUplinks(indexes); err != nil {
		problems[""] = err
	}
	d.host.set(func(h *hostState) { h.uplinks = problems })
	return attached
}

// uplinkTries is how often an uplink is looked for at once: a netlink error such as a full buffer passes.
const uplinkTries = 3

// findUplink looks for an uplink. Only LinkNotFoundError says that it is not there.
func (d *Datapath) findUplink(name string) (l netlink.Link, err error) {
	find := netlink.LinkByName
	if d.linkByName != nil {
		find = d.linkByName
	}
	for range uplinkTries {
		if l, err = find(name); err == nil || errors.As(err, new(netlink.LinkNotFoundError)) {
			break
		}
	}
	return l, err
}

// uplinkHookedAt is the index of the interface that has all of an uplink's hooks by their pins, 0 if none has.
func (d *Datapath) uplinkHookedAt(name string) (int, error) {
	first := d.uplinkHooks()[0]
	at, err := pinnedAt(linkPath(d.opts.BPFDir, first.name, first.kind, name))
	if err != nil || at == 0 || d.hooked(name, at, d.uplinkHooks()) != nil {
		return 0, err
	}
	return at, nil
}

// hooked says which of the hooks is not attached to the interface, nil if all are.
func (d *Datapath) hooked(iface string, ifindex int, hooks []hook) error {
	for _, h := range hooks {
		at, err := pinnedAt(linkPath(d.opts.BPFDir, h.name, h.kind, iface))
		if err != nil {
			return err
		}
		if at != ifindex {
			return fmt.Errorf("%s is not attached to %s (%s)", h.name, iface, h.kind)
		}
	}
	return nil
}
