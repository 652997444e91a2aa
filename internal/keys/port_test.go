package keys

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeFilter is the kernel's.
type fakeFilter struct {
	mu      sync.Mutex
	err     error
	allowed []netip.Addr
	packets uint64
	last    netip.Addr
	unread  error
}

func (f *fakeFilter) Allow(addrs map[netip.Addr]bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.allowed = slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
	return f.err
}

func (f *fakeFilter) Refused() (uint64, netip.Addr, error) { return f.packets, f.last, f.unread }

// TestPortFilter: the kernel is told of the very addresses that the agent itself admits, with every
// change of peers; what it has dropped is counted, and a filter that cannot be set is a problem
// until it can.
func TestPortFilter(t *testing.T) {
	addr := netip.MustParseAddr
	filter := &fakeFilter{packets: 7, last: addr("192.0.2.7")}
	b := newFixture(t)
	b.options = func(o *Options) { o.Filter = filter }
	a := b.node("a")
	a.peers = func() []Peer { return nil }
	a.start()
	one, both := Peer{Name: "b", Addresses: []netip.Addr{addr("192.0.2.2")}}, Peer{Name: "c",
		Addresses: []netip.Addr{addr("192.0.2.3"), addr("2001:db8::3")}}
	mapped, self := Peer{Name: "d",
		Addresses: []netip.Addr{addr("::ffff:192.0.2.4")}},
		Peer{Name: "a", Addresses: []netip.Addr{addr("192.0.2.1")}}
	for _, c := range []struct {
		name  string
		peers []Peer
		err   error
		want  []netip.Addr
	}{
		{"one", []Peer{one}, nil, []netip.Addr{addr("192.0.2.2")}},
		{"another, of both families", []Peer{one, both, self}, nil,
			[]netip.Addr{addr("192.0.2.2"), addr("192.0.2.3"), addr("2001:db8::3")}},
		{"one is gone, one mapped", []Peer{one, mapped}, nil,
			[]netip.Addr{addr("192.0.2.2"), addr("192.0.2.4")}},
		{"the kernel has no room", []Peer{one}, errors.New("no room"),
			[]netip.Addr{addr("192.0.2.2")}},
		{"and has it again", []Peer{one}, nil, []netip.Addr{addr("192.0.2.2")}},
		{"nobody", nil, nil, nil},
	} {
		filter.err = c.err
		a.SetPeers(c.peers)
		if !slices.Equal(filter.allowed, c.want) {
			t.Errorf("%s: the kernel allows %v, want %v", c.name, filter.allowed, c.want)
		}
		for _, address := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4",
			"2001:db8::3"} {
			if a.Manager.peers.admit(addr(address)) != slices.Contains(c.want, addr(address)) {
				t.Errorf("%s: the agent and the kernel do not agree on %s", c.name, address)
			}
		}
		status := a.Status()
		if told := slices.ContainsFunc(status.Problems,
			func(p string) bool {
				return strings.HasPrefix(p,
					"port filter: ")
			}); told != (c.err != nil) {
			t.Errorf("%s: problems are %q", c.name, status.Problems)
		}
		if turned := status.Counters.Turned; turned.Filtered != 7 ||
			turned.LastUnknown != filter.last {
			t.Errorf("%s: counted %+v", c.name, turned)
		}
	}
}

// TestPortUnfiltered: that the port has no filter, or that nobody can say what it drops, is a
// problem while it is so.
func TestPortUnfiltered(t *testing.T) {
	filter := &fakeFilter{}
	b := newFixture(t)
	b.options = func(o *Options) {
		o.Filter, o.Unfiltered = filter, func() error { return errors.New("the kernel takes no program") }
	}
	a := b.cluster("a")[0]
	told := func(what string) bool { return slices.Contains(a.Status().Problems, what) }
	b.until("it is told that there is no filter",
		func() bool { return told("port without filter: the kernel takes no program") })
	for _, unread := range []error{nil, errors.New("no such map"), nil} {
		filter.unread = unread
		if told("port filter's count: no such map") != (unread != nil) {
			t.Errorf("reading what it dropped gives %v, problems are %q", unread,
				a.Status().Problems)
		}
	}
}
