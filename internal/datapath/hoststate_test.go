package datapath

import (
	"slices"
	"testing"
)

// TestHostChangesAreCollected: what happens while nobody fetches is one element, which names each
// interface once.
func TestHostChangesAreCollected(t *testing.T) {
	d := &Datapath{host: hostState{changed: make(chan HostChange, 1)}}
	for _, name := range []string{"weft2", "weft1", "weft2"} {
		d.host.tell(HostChange{Interfaces: []string{name}})
	}
	if got := <-d.HostChanges(); got.All ||
		!slices.Equal(got.Interfaces, []string{"weft1", "weft2"}) {
		t.Errorf("%+v", got)
	}
	d.host.tell(HostChange{All: true})
	d.host.tell(HostChange{Interfaces: []string{"weft1"}})
	if got := <-d.HostChanges(); !got.All || !slices.Equal(got.Interfaces, []string{"weft1"}) {
		t.Errorf("%+v", got)
	}
	select {
	case got := <-d.HostChanges():
		t.Errorf("again: %+v", got)
	default:
	}
}
