package e2e

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
)

// flood sends one datagram from each of many source ports, which makes as many flows, at a pace
// that a veth's ring can take on a machine that is not busy.
func flood(t *testing.T, from *lab.Pod, to netip.AddrPort, flows int) {
	t.Helper()
	floodPaced(t, from, to, flows, func(int) { time.Sleep(2 * time.Millisecond) })
}

// floodTo is flood where none may be lost, however busy the machine: no more are on their way than
// a veth's ring takes.
func floodTo(t *testing.T, from *lab.Pod, to netip.AddrPort, flows int, sink *listener,
	drops func() string) {
	t.Helper()
	floodPaced(t, from, to, flows, func(sent int) {
		for begin := time.Now(); sink.total.Load() < int64(sent); time.Sleep(200 * time.Microsecond) {
			if time.Since(begin) > patience {
				t.Fatalf("of the flood's first %d datagrams %d arrived; drops: %s", sent,
					sink.total.Load(), drops())
			}
		}
	})
}

// floodPaced calls pace after every 50 datagrams, with how many were sent.
func floodPaced(t *testing.T, from *lab.Pod, to netip.AddrPort, flows int, pace func(sent int)) {
	t.Helper()
	end := openEnd(t, from.NetNS, "eth0", false)
	frame := datagram(mac(from.MAC),
		netip.AddrPortFrom(from.Addr(map[bool]int{true: 4, false: 6}[to.Addr().Is4()]), 1), to,
		false)
	for i := range flows {
		end.send(t, fromPort(frame, uint16(1024+i%60000)))
		if i%50 == 49 {
			pace(i + 1)
		}
	}
}

// fromPort changes a frame's UDP source port and keeps its checksum right (RFC 1624).
func fromPort(frame []byte, port uint16) []byte {
	at := 14 + 20
	if frame[12] == 0x86 {
		at = 14 + 40
	}
	out := append([]byte(nil), frame...)
	old := uint16(out[at])<<8 | uint16(out[at+1])
	sum := uint32(^(uint16(out[at+6])<<8 | uint16(out[at+7]))) + uint32(^old) + uint32(port)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	check := ^uint16(sum)
	if check == 0 {
		check = 0xffff // in UDP, 0 means that there is no checksum
	}
	out[at], out[at+1], out[at+6], out[at+7] = byte(port>>8), byte(port), byte(check>>8), byte(check)
	return out
}

// TestManyFlows fills small flow tables twenty times over: forwarding goes on, for new flows and
// old.
func TestManyFlows(t *testing.T) {
	const many = 20_000
	l := useShared(t)
	drops := func() string { return "at a: " + dropText(t, l.Node("a")) + "; at b: " + dropText(t, l.Node("b")) }
	for _, mode := range []string{"auto", "xdp", "tc", "stack"} {
		t.Run(mode, func(t *testing.T) {
			reconfigure(t,
				map[string]any{"mode": mode, "flows": map[string]any{"maxEntries": 1024}},
				agents(l)...)
			for _, family := range []int{4, 6} {
				load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
				sink := listen(t, l.Pod("server"), uint16(9100+family))
				floodTo(t, l.Pod("client"),
					netip.AddrPortFrom(l.Pod("server").Addr(family), uint16(9100+family)), many,
					sink, drops)
				load.nothingLost(t)
			}
			connected(t, l)
		})
	}
}

// TestEventFlood makes far more events than may be told: those held back are counted, and traffic
// is unharmed.
func TestEventFlood(t *testing.T) {
	l := useShared(t)
	a := l.Node("a")
	reconfigure(t, map[string]any{"flows": map[string]any{"eventsPerSecond": 100}}, a)
	load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
	before := status(t, a).Events
	flood(t, l.Pod("client"), netip.AddrPortFrom(l.Pod("server").IPv4, 9), 5000)
	spoofFlood(t, l.Pod("client"), 5000)
	if after := status(t, a).Events; after.Suppressed < before.Suppressed+5000 {
		t.Errorf("10000 events at 100 a second: held back %d before, %d after", before.Suppressed,
			after.Suppressed)
	}
	load.nothingLost(t)
}

// TestEventsUnread fills the ring buffer while the agent sleeps: what does not fit is counted as
// lost.
func TestEventsUnread(t *testing.T) {
	l := useShared(t)
	a := l.Node("a")
	reconfigure(t, map[string]any{"flows": map[string]any{"eventsPerSecond": 1_000_000}}, a)
	load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
	pid := a.PID()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) })
	spoofFlood(t, l.Pod("client"), 20_000)
	load.flowing(t, "with the agent asleep")
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent to tell of lost events", func() error {
		s, err := admin.NewClient(a.Socket).Status(t.Context())
		if err != nil {
			return err
		}
		if s.Events.Lost == 0 {
			return fmt.Errorf("events: %+v", s.Events)
		}
		return nil
	})
	load.nothingLost(t)
}

// spoofFlood sends frames that are dropped: each asks for an event.
func spoofFlood(t *testing.T, from *lab.Pod, packets int) {
	t.Helper()
	end := openEnd(t, from.NetNS, "eth0", false)
	forged := datagram(mac(from.MAC), netip.MustParseAddrPort("198.51.100.1:9"),
		netip.MustParseAddrPort("198.51.100.2:9"), false)
	for i := range packets {
		end.send(t, forged)
		if i%50 == 49 {
			time.Sleep(time.Millisecond)
		}
	}
}
