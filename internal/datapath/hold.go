package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
)

// hold keeps the uplinks' hooks, the sealer's and the guard of a previous run in force, with their
// own maps, while a map that decides was made anew, since its layout differs, and is not filled. It
// ends once SetNodes has entered the routes and EnterEndpoints the endpoints. Only then are the
// maps pinned, and before any hook is replaced: whenever the agent dies, what is pinned is filled,
// and the next one begins again with what is not.
type hold struct {
	mu        sync.Mutex
	on        bool
	routes    bool
	endpoints bool
}

func (h *hold) isOn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on
}

// openMaps opens the maps of an instance, knowing whether hooks of a previous run decide.
func openMaps(dir string, flowEntries uint32, sealing bool, log *slog.Logger) (*bpf.Maps, error) {
	hooked, err := isHooked(dir)
	if err != nil {
		return nil, err
	}
	return bpf.OpenMaps(dir, flowEntries, sealing, hooked, log)
}

// isHooked says whether hooks of a previous run decide about what crosses the uplinks.
func isHooked(dir string) (bool, error) {
	links, err := hook.List(dir)
	return slices.ContainsFunc(links, func(l hook.Pinned) bool {
		return hook.OnlyAt(l.Hook, hook.Uplink) || hook.OnlyAt(l.Hook, hook.Node)
	}), err
}

// begin begins a hold if there are maps to fill.
func (h *hold) begin(late int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.on = late > 0
}

// attachNode hooks the uplinks and the node's netfilter, unless what is there must stay for now.
func (d *Datapath) attachNode() error {
	if !d.hold.isOn() {
		return errors.Join(d.attachUplinks(), d.attachNetfilter())
	}
	d.log.Warn("the hooks of the agent before stay in force until the maps of the new layout are filled")
	d.host.set(func(h *hostState) {
		h.held = "the uplinks' hooks are those of the agent before, until the nodes' ranges and this node's endpoints are entered"
	})
	return nil
}

// EnterEndpoints enters the endpoints of a previous run, all of them before the first is attached,
// where a hold waits for them. Those whose interfaces are gone are left out.
func (d *Datapath) EnterEndpoints(list []Endpoint) error {
	if !d.hold.isOn() {
		return nil
	}
	var failed error
	for _, ep := range list {
		failed = errors.Join(failed, d.enterEndpoint(ep))
	}
	if failed != nil {
		return failed
	}
	return d.endHold(func(h *hold) { h.endpoints = true })
}

func (d *Datapath) enterEndpoint(ep Endpoint) error {
	var ifindexes []int
	for _, name := range []string{ep.HostIf, netdev.SecondHostIf(ep.HostIf)} {
		l, err := netlink.LinkByName(name)
		switch {
		case err == nil:
			ifindexes = append(ifindexes, l.Attrs().Index)
		case !errors.As(err, new(netlink.LinkNotFoundError)):
			return fmt.Errorf("find interface %s: %w", name, err)
		case name == ep.HostIf:
			return nil
		}
	}
	return d.putEndpoint(ep, ifindexes)
}

// checkHold refuses an endpoint that the hooks in force do not know: they would take what it sends
// for the world's.
func (d *Datapath) checkHold(ep Endpoint) error {
	if !d.hold.isOn() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.eps[ep.Slot]; known {
		return nil
	}
	return errors.New("the uplinks' hooks are still those of the agent before, until the other nodes' ranges are entered")
}

// endHold notes what has been filled, and replaces the hooks if that was the last.
func (d *Datapath) endHold(filled func(*hold)) error {
	d.hold.mu.Lock()
	defer d.hold.mu.Unlock()
	filled(&d.hold)
	if !d.hold.on || !d.hold.routes || !d.hold.endpoints {
		return nil
	}
	if err := d.maps.PinLate(d.opts.BPFDir); err != nil {
		return err
	}
	if err := d.step("maps pinned"); err != nil {
		return err
	}
	if err := errors.Join(d.attachUplinks(), d.attachSealer(), d.attachNetfilter()); err != nil {
		return err
	}
	d.hold.on = false
	d.host.set(func(h *hostState) { h.held = "" })
	d.mu.Lock()
	settled := d.settled
	d.allowEither() // from now on flows are entered
	err := d.writeConfig()
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if !settled {
		return nil // Prune is to come
	}
	return d.dropFormer()
}
