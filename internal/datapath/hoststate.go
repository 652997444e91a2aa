package datapath

import (
	"fmt"
	stdmaps "maps"
	"slices"
	"sync"
	"time"
)

// maxNotes is how many of the latest notes are kept.
const maxNotes = 8

// hostState is what was found about the host since the agent started. It has a lock of its own,
// since status must not wait for a synchronisation.
type hostState struct {
	// changed has one element while something happened that endpoints must follow. Only tell puts
	// one in.
	changed chan HostChange

	mu      sync.Mutex
	uplinks map[string]error // by name, those that are missing or not hooked
	strays  []string         // pods' interfaces that no endpoint owns
	held    string           // what the uplinks' hooks wait for
	damaged []string         // files of the state directory that could not be read
	notes   []Note
}

// Note is something that happened to the host's settings and was put in order.
type Note struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

func (h *hostState) set(change func(*hostState)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

func (h *hostState) note(format string, args ...any) {
	h.set(func(h *hostState) {
		h.notes = append(h.notes,
			Note{time.Now().UTC().Truncate(time.Second), fmt.Sprintf(format, args...)})
		h.notes = h.notes[max(0, len(h.notes)-maxNotes):]
	})
}

// HostChange is what of the endpoints others may have changed: a route, a neighbour, an interface.
type HostChange struct {
	// Interfaces are the endpoints' on the node, each once.
	Interfaces []string
	// All says that any of them may be affected.
	All bool
}

// tell has the owner of the endpoints look at those of some interfaces; it adds to what was not
// fetched yet.
func (h *hostState) tell(change HostChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case before := <-h.changed:
		change.All = change.All || before.All
		change.Interfaces = append(before.Interfaces, change.Interfaces...)
	default:
	}
	slices.Sort(change.Interfaces)
	change.Interfaces = slices.Compact(change.Interfaces)
	select {
	case h.changed <- change:
	default:
	}
}

// HostChanges tells what others may have changed, collected since the last element was fetched.
func (d *Datapath) HostChanges() <-chan HostChange { return d.host.changed }

// Problems says what does not work on the host now.
func (d *Datapath) Problems() []string {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(stdmaps.Keys(d.host.uplinks)) {
		out = append(out, d.host.uplinks[name].Error())
	}
	if text := d.hops.Problem(); text != "" {
		out = append(out, text)
	}
	if d.host.held != "" {
		out = append(out, d.host.held)
	}
	for _, name := range d.host.strays {
		out = append(out,
			fmt.Sprintf("interface %s has no endpoint record: its hooks stay and refuse all that comes from it (unknown_interface); remove the pod or the interface", name))
	}
	for _, path := range d.host.damaged {
		out = append(out,
			fmt.Sprintf("%s could not be read and was set aside: cleanup cannot put back what it noted; remove it once that is done by hand", path))
	}
	return out
}

// Notes are the latest events, oldest first.
func (d *Datapath) Notes() []Note {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	return slices.Clone(d.host.notes)
}
