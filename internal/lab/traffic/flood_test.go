package traffic

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
)

func floodOptions() FloodOptions {
	return FloodOptions{
		IfName: "lo", SrcMAC: make(net.HardwareAddr, 6), DstMAC: make(net.HardwareAddr, 6),
		Src: netip.MustParseAddr("127.0.0.2"), Dst: netip.MustParseAddr("127.0.0.3"),
	}
}

// TestFloodFrames: what a flood sends is what its options say, and every header checksum is right.
func TestFloodFrames(t *testing.T) {
	const batches = 1100 // more frames than there are source ports
	for name, c := range map[string]struct {
		change                 func(*FloodOptions)
		flows, firsts, expired int
	}{
		"flows": {func(*FloodOptions) {}, batches * BatchSize, 0, 0},
		"hostile": {func(o *FloodOptions) { o.Hostile = true }, batches * BatchSize, batches,
			batches * floodExpiring},
		"one flow": {func(o *FloodOptions) { o.OneFlow = true }, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := floodOptions()
			c.change(&o)
			batch := o.frames()
			flows, datagrams, firsts, expired := map[uint32]bool{}, map[uint16]bool{}, 0, 0
			for n := range uint64(batches * BatchSize) {
				frame := batch.Data[n%BatchSize]
				o.number(frame, n)
				if sum := inet.Checksum(frame[floodIP:floodUDP]); sum != 0 {
					t.Fatalf("frame %d: wrong header checksum", n)
				}
				flows[binary.BigEndian.Uint32(frame[floodUDP:])] = true
				if frame[floodIP+6]&0x20 != 0 {
					firsts++
					datagrams[binary.BigEndian.Uint16(frame[floodIP+4:])] = true
				}
				if frame[floodIP+8] == 1 {
					expired++
				}
			}
			if len(flows) != c.flows || firsts != c.firsts || len(datagrams) != c.firsts ||
				expired != c.expired {
				t.Errorf("%d flows, %d first fragments of %d datagrams, %d with TTL 1; want %+v",
					len(flows), firsts, len(datagrams), expired, c)
			}
		})
	}
}

func TestFloodIsRefused(t *testing.T) {
	for what, change := range map[string]func(*FloodOptions){
		"IPv6":   func(o *FloodOptions) { o.Dst = netip.IPv6Loopback() },
		"no MAC": func(o *FloodOptions) { o.SrcMAC = nil },
	} {
		o := floodOptions()
		change(&o)
		if f, err := StartFlood(o); err == nil {
			_, _ = f.Stop()
			t.Errorf("%s accepted", what)
		}
	}
}

// TestFloodIsCounted: what a flood says it has sent the interface has sent, too.
func TestFloodIsCounted(t *testing.T) {
	o := floodOptions()
	o.NetNS = namespace(t)
	f, err := StartFlood(o)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return f.Report().Sent > 1000 })
	report, err := f.Stop()
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Do(o.NetNS, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if sent := lo.Attrs().Statistics.TxPackets; sent != report.Sent {
			return fmt.Errorf("loopback sent %d frames, the flood %s", sent, report)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if again, err := f.Stop(); err != nil || again != report {
		t.Errorf("a second Stop says %s, %v", again, err)
	}
}

// TestFlowsExchange: all flows are answered, twice, and the same flows can be opened again.
func TestFlowsExchange(t *testing.T) {
	e, err := StartEcho("", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(t.Context(), drainTimeout)
	defer cancel()
	o := FlowsOptions{Src: loopback, Dst: netip.AddrPortFrom(loopback, e.Port()), UDP: 50, TCP: 40,
		FirstPort: freePorts(t, 90)}
	for range 2 {
		f, err := OpenFlows(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := f.Exchange(ctx); err != nil {
				t.Error(err)
			}
		}
		if lost, sent := f.Lost(); lost != 0 || sent < 100 {
			t.Errorf("%d of %d datagrams lost, want none of 100", lost, sent)
		}
		f.Close()
	}
}

// freePorts finds ports in a row that nobody on the loopback has.
func freePorts(t *testing.T, count int) uint16 {
	t.Helper()
	for first := 12000; first < 30000; first += count {
		free := true
		for port := first; port < first+count && free; port++ {
			u, errU := net.ListenPacket("udp", fmt.Sprintf("%s:%d", loopback, port))
			l, errL := net.Listen("tcp", fmt.Sprintf("%s:%d", loopback, port))
			if free = errU == nil && errL == nil; errU == nil {
				u.Close()
			}
			if errL == nil {
				l.Close()
			}
		}
		if free {
			return uint16(first)
		}
	}
	t.Fatalf("no %d free ports in a row", count)
	return 0
}

// TestFlowsLossIsSeen: a datagram without an answer is sent again, and counted as lost.
func TestFlowsLossIsSeen(t *testing.T) {
	server, err := net.ListenPacket("udp", netip.AddrPortFrom(loopback, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go answerSecond(server)
	dst := server.LocalAddr().(*net.UDPAddr).AddrPort()
	f, err := OpenFlows(t.Context(),
		FlowsOptions{Src: loopback, Dst: dst, UDP: 3, FirstPort: freePorts(t, 3)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), drainTimeout)
	defer cancel()
	if err := f.Exchange(ctx); err != nil {
		t.Fatal(err)
	}
	if lost, sent := f.Lost(); lost != 3 || sent < 6 {
		t.Errorf("%d of %d datagrams lost, want 3 of at least 6", lost, sent)
	}
}

// answerSecond echoes every datagram of a client but its first.
func answerSecond(server net.PacketConn) {
	seen := map[string]bool{}
	buf := make([]byte, 64)
	for {
		n, from, err := server.ReadFrom(buf)
		if err != nil {
			return
		}
		if !seen[from.String()] {
			seen[from.String()] = true
			continue
		}
		_, _ = server.WriteTo(buf[:n], from)
	}
}

// TestFlowsBreak: a connection that was closed is an error, not silence.
func TestFlowsBreak(t *testing.T) {
	e, err := StartEcho("", 0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := OpenFlows(t.Context(),
		FlowsOptions{Src: loopback, Dst: netip.AddrPortFrom(loopback, e.Port()), TCP: 2,
			FirstPort: freePorts(t, 2)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), drainTimeout)
	defer cancel()
	if err := f.Exchange(ctx); err != nil {
		t.Fatal(err)
	}
	e.Close()
	if err := f.Exchange(ctx); err == nil || os.IsTimeout(err) ||
		!strings.Contains(err.Error(), "TCP flow 0") {
		t.Errorf("flow whose end is closed: %v", err)
	}
}
