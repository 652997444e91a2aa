package datapath

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/flowtable"
)

// markPort is the source port of the packets that mark the end of what is in the ring.
const markPort = 64999

var lastMark uint16

// events reads all that is in the ring, through the agent's own reader. A drop from an unknown
// interface, with a port of its own, marks the end.
func (b *harness) events(t *testing.T) []FlowEvent {
	t.Helper()
	rate := b.config.EventsPerSec
	b.setRate(t, 1e9)
	mark := func() {
		lastMark++
		b.send(t, "tc", "from_pod", "wtx", fromA(peer4).udp(markPort, lastMark, 3).bytes())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var list []FlowEvent
	done, remarked := false, false
	mark()
	must(t, b.Events(ctx, func(e FlowEvent) {
		switch {
		case done:
		case e.Src.Port() == markPort:
			if done = e.Dst.Port() == lastMark; done {
				cancel()
			}
		default:
			if list = append(list, e); !remarked {
				remarked = true
				mark() // the first mark found no room if the ring was full
			}
		}
	}))
	b.setRate(t, rate)
	if !done {
		t.Fatal("the ring never gave the mark back")
	}
	return list
}

// setRate changes the rate limit and forgets what the buckets hold.
func (b *harness) setRate(t *testing.T, perSecond uint32) {
	t.Helper()
	b.config.EventsPerSec, b.config.EventsShare = perSecond, 0 // one bucket, that of all
	must(t, b.maps.Config.Put(uint32(0), &b.config))
	must(t, b.resetBudgets())
}

// eventHarness is a harness with an empty ring and statistics at zero.
func eventHarness(t *testing.T) *harness {
	b := newHarness(t)
	b.events(t)
	b.reset(t)
	return b
}

func TestEvents(t *testing.T) {
	pod, peer := netip.AddrPortFrom(podA.IPv4, 1000), netip.AddrPortFrom(peer4, 80)
	ignoreTime := cmpopts.IgnoreFields(FlowEvent{}, "Time")
	addrs := cmpopts.EquateComparable(netip.AddrPort{})
	for _, c := range contexts {
		t.Run(c, func(t *testing.T) {
			b := eventHarness(t)
			before := time.Now()
			there, back := fromA(peer4).tcp(1000, 80, syn, 0).bytes(), fromPeer(podA.IPv4).tcp(80,
				1000, rst|ack, 0).bytes()
			b.send(t, c, "from_pod", "wta", there)
			b.send(t, c, "from_pod", "wta", there)
			b.send(t, c, "from_wire", "wtup", back)
			b.send(t, c, "from_wire", "wtup", back)
			forged := fromA(peer4).src(podB.IPv4).udp(5, 6, 7).bytes()
			b.send(t, c, "from_pod", "wta", forged)
			got := b.events(t)
			size := uint32(len(there))
			want := []FlowEvent{
				{Type: EventNew, Verdict: "remote", Hook: "from_pod", Slot: 1, Direction: "egress",
					Src: pod, Dst: peer, Protocol: unix.IPPROTO_TCP, TCPFlags: syn, Length: size},
				{Type: EventEnd, Verdict: "local", Hook: "from_wire", Slot: 1, Direction: "ingress",
					Src: peer, Dst: pod, Protocol: unix.IPPROTO_TCP, TCPFlags: rst | ack,
					Length:  size,
					Forward: Traffic{Packets: 2, Bytes: uint64(2 * size)},
					Reply:   Traffic{Packets: 1, Bytes: uint64(size)}},
				{Type: EventDrop, Verdict: "drop", Reason: "spoofed_ip", Hook: "from_pod", Slot: 1,
					Direction: "egress",
					Src:       netip.AddrPortFrom(podB.IPv4, 5), Dst: netip.AddrPortFrom(peer4, 6),
					Protocol: unix.IPPROTO_UDP, Length: uint32(len(forged))},
			}
			if len(got) > 0 {
				if !(got[0].Verdict == "remote") {
					t.Error("the event of a new flow to a remote pod says " + got[0].Verdict)
				}
				want[0].Verdict = got[0].Verdict
			}
			if diff := cmp.Diff(want, got, ignoreTime, addrs); diff != "" {
				t.Fatalf("events (-want +got):\n%s", diff)
			}
			for _, e := range got {
				// The datapath's clock is coarse: a tick of up to 10 ms behind.
				if e.Time.Before(before.Add(-50*time.Millisecond)) || e.Time.After(time.Now()) {
					t.Errorf("time %s, want between %s and now", e.Time, before)
				}
			}
		})
	}
}

// TestEventFamilies: IPv6 addresses, IPv4 ones, and frames that have none.
func TestEventFamilies(t *testing.T) {
	b := eventHarness(t)
	b.send(t, "xdp", "from_pod", "wta", fromA(world6).udp(1000, 53, 8).bytes())
	b.send(t, "tc", "from_pod", "wta", fromA(world4).udp(1000, 53, 8).bytes())
	b.send(t, "tc", "from_pod", "wta", fromA(world4).udp(1000, 53, 8).tag(0x8100, 1).bytes())
	got := b.events(t)
	if len(got) != 3 {
		t.Fatalf("%d events, want 3: %+v", len(got), got)
	}
	if got[0].Dst != netip.AddrPortFrom(world6, 53) ||
		got[1].Dst != netip.AddrPortFrom(world4, 53) || got[2].Dst.IsValid() {
		t.Errorf("destinations %s, %s, %s", got[0].Dst, got[1].Dst, got[2].Dst)
	}
	if !(got[1].Verdict == "stack") {
		t.Error("the event of a new flow to the outside says " + got[1].Verdict)
	}
}

// TestEventsOneByOne: an event reaches a reader that has gone to sleep, and the next, which wakes
// nobody, reaches it too.
func TestEventsOneByOne(t *testing.T) {
	b := eventHarness(t)
	b.setRate(t, 1e9)
	heard := make(chan uint16, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- b.Events(ctx, func(e FlowEvent) { heard <- e.Dst.Port() }) }()
	expect := func(want uint16) {
		t.Helper()
		select {
		case got := <-heard:
			if got != want {
				t.Fatalf("heard of port %d, want %d", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("port %d: nothing heard", want)
		}
	}
	for port := uint16(1); port < 300; port += 3 {
		// Every tenth time the reader is asleep for good.
		if port%10 == 1 {
			time.Sleep(3 * flowtable.EventsLinger)
		}
		for i := range uint16(3) {
			b.send(t, "tc", "from_pod", "wtx", fromA(peer4).udp(1000, port+i, 3).bytes())
			if i == 0 {
				expect(port)
			}
		}
		expect(port + 1)
		expect(port + 2)
	}
	cancel()
	must(t, <-ended)
}

// TestEventsRateLimit: what the limit holds back is counted, and the packets' fate does not change.
func TestEventsRateLimit(t *testing.T) {
	forged := fromA(peer4).src(podB.IPv4).udp(5, 6, 7).bytes()
	for _, c := range contexts {
		b := eventHarness(t)
		b.setRate(t, 10)
		const sent = 200
		for range sent {
			if v, _ := b.send(t, c, "from_pod", "wta", forged); v != "drop" {
				t.Fatalf("%s: %s", c, v)
			}
		}
		stats, err := b.EventStats()
		must(t, err)
		got := uint64(len(b.events(t)))
		if got+stats.Suppressed != sent || got == 0 || stats.Suppressed == 0 || stats.Lost != 0 {
			t.Errorf("%s: %d events, %+v; want %d together", c, got, stats, sent)
		}
		b.reset(t)
		b.setRate(t, 0)
		b.send(t, c, "from_pod", "wta", forged)
		if stats, err = b.EventStats(); err != nil || stats.Suppressed != 1 {
			t.Errorf("%s: limit 0: %+v, %v; want 1 suppressed", c, stats, err)
		}
	}
}

// TestRingFull: a ring that nobody reads loses events, counts them, and nothing else.
func TestRingFull(t *testing.T) {
	forged, good := fromA(peer4).src(podB.IPv4).udp(5, 6, 7).bytes(), fromA(peer4).udp(5, 6,
		7).bytes()
	for _, c := range contexts {
		b := eventHarness(t)
		b.setRate(t, 1e9)
		const sent = 12000
		for range sent {
			b.send(t, c, "from_pod", "wta", forged)
		}
		verdict, out := b.send(t, c, "from_pod", "wta", good)
		if verdict != "redirect" {
			t.Errorf("%s: ring full: %s", c, verdict)
		}
		must(t, toPeer(good, out))
		stats, err := b.EventStats()
		must(t, err)
		got := uint64(len(b.events(t)))
		if stats.Lost == 0 || got+stats.Lost != sent+1 {
			t.Errorf("%s: %d events and %d lost, want %d together", c, got, stats.Lost, sent+1)
		}
		if counts := reasonsIn(b.counted(t)); len(counts) == 0 {
			t.Errorf("%s: drops were not counted", c)
		}
	}
}
