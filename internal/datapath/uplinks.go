package datapath

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
)

// attachUplinks hooks every uplink when the agent starts.
func (d *Datapath) attachUplinks() error {
	indexes := map[uint32]bool{}
	for _, name := range d.opts.Uplinks {
		l, err := d.findUplink(name)
		if err != nil {
			return fmt.Errorf("find uplink %s: %w (set uplinks in the agent's configuration)", name,
				err)
		}
		if err := d.attachUplink(l); err != nil {
			return err
		}
		indexes[uint32(l.Attrs().Index)] = true
	}
	return d.keepUplinks(indexes)
}

// attachUplink hooks one uplink. It can be called again, and for another interface of the same
// name.
func (d *Datapath) attachUplink(l netlink.Link) error {
	name, index := l.Attrs().Name, l.Attrs().Index
	if err := d.links().Ensure(name, index, d.uplinkHooks()); err != nil {
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
		if d.links().Check(name, l.Attrs().Index, d.uplinkHooks()) == nil {
			indexes[index] = true
			continue
		}
		if err := d.attachUplink(l); err != nil {
			problems[name] = fmt.Errorf("uplink %s is not hooked, nothing sealed can be opened on it: %w", name, err)
			continue
		}
		attached, indexes[index] = true, true
		d.log.Warn("uplink had no hooks, attached them", "interface", name, "index",
			l.Attrs().Index)
		d.host.note("uplink %s had lost its hooks (it was made anew?): attached them", name)
	}
	if err := d.keepUplinks(indexes); err != nil {
		problems[""] = err
	}
	d.host.set(func(h *hostState) { h.uplinks = problems })
	return attached
}

// uplinkTries is how often an uplink is looked for at once: a netlink error such as a full buffer
// passes.
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

// uplinkHookedAt is the index of the interface that has all of an uplink's hooks by their pins, 0
// if none has.
func (d *Datapath) uplinkHookedAt(name string) (int, error) {
	first := d.uplinkHooks()[0]
	at, err := hook.PinnedAt(hook.Path(d.opts.BPFDir, first.Name, first.Kind, name))
	if err != nil || at == 0 || d.links().Check(name, at, d.uplinkHooks()) != nil {
		return 0, err
	}
	return at, nil
}

// putUplink enters an uplink that has its hooks, so that what comes in or leaves by it is known to
// have passed them.
func (d *Datapath) putUplink(ifindex int) error {
	if err := d.maps.Uplinks.Put(uint32(ifindex), uint8(1)); err != nil {
		return fmt.Errorf("enter uplink %d: %w", ifindex, err)
	}
	return nil
}

// keepUplinks removes every interface but these from the uplinks.
func (d *Datapath) keepUplinks(ifindexes map[uint32]bool) error {
	return bpf.DeleteWhere(d.maps.Uplinks,
		func(index uint32, _ uint8) bool { return !ifindexes[index] })
}

// attachNetfilter makes this run's programs the ones that are attached to the node's netfilter: if
// packets are sealed, all; where endpoints have policies, those that see what leaves by interfaces
// without hooks and what this host gets.
func (d *Datapath) attachNetfilter() error {
	d.mu.Lock()
	policed := d.config.Flags&bpf.ConfigPolicy != 0
	d.mu.Unlock()
	switch {
	case d.opts.Encrypt != nil:
		return d.links().EnsureNode()
	case policed:
		err := d.links().EnsureGuards()
		d.guarded.Store(err == nil)
		return err
	}
	return d.links().DropNode()
}

// Links lists what is attached where.
func (d *Datapath) Links() ([]LinkStatus, error) { return d.links().Status() }
