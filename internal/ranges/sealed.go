package ranges

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// maxSealed bounds the addresses that are remembered of pods that are gone.
const maxSealed = 1024

// learnSealed remembers which addresses pods wanted sealed, where a range around them may be plain.
// One is released when an endpoint has it that does not ask; that its objects are gone releases
// nothing.
func (m *Memory) learnSealed(in Input) []netip.Addr {
	asking := make(map[netip.Addr]bool, len(in.Asking))
	for _, a := range in.Asking {
		asking[a] = true
		m.sealed[a] = time.Time{}
	}
	for _, a := range in.Others {
		if !asking[a] {
			delete(m.sealed, a)
		}
	}
	now := m.now()
	var gone []netip.Addr
	for a, since := range m.sealed {
		if asking[a] {
			continue
		}
		if since.IsZero() {
			m.sealed[a] = now
		}
		gone = append(gone, a)
	}
	slices.SortFunc(gone,
		func(a, b netip.Addr) int { return cmp.Or(m.sealed[b].Compare(m.sealed[a]), a.Compare(b)) })
	for len(gone) > maxSealed {
		delete(m.sealed, gone[len(gone)-1])
		gone = gone[:len(gone)-1]
	}
	slices.SortFunc(gone, netip.Addr.Compare)
	return gone
}

func (m *Memory) sealedList() []netip.Addr {
	return slices.SortedFunc(maps.Keys(m.sealed), netip.Addr.Compare)
}
