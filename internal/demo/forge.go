package demo

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
)

const (
	// forgeCount is how many frames of a kind are sent.
	forgeCount = 5
	// forgeSettle is how long a frame may take to arrive, or an event to be logged.
	forgeSettle = 2 * time.Second
	// strayWait is how long is waited for frames that must not arrive.
	strayWait = 300 * time.Millisecond
	// clockSlack is more than events' times, taken from the kernel's coarse clock, can lag.
	clockSlack = 50 * time.Millisecond
)

// strangeMAC is nobody's address.
var strangeMAC = net.HardwareAddr{0x02, 0xba, 0xdb, 0xad, 0x00, 0x01}

// forgery is a frame that a pod may or may not send. No reason means that it may.
type forgery struct {
	name, what string
	reason     bpf.Reason
	family     string // at whose receiver it would arrive; empty when nowhere
	frame      []byte
}

// tally is what became of a forgery.
type tally struct {
	before, after uint64
	delivered     uint64
	event         *flows.Flow
}

// forge sends frames that are not the pod's to send, beside the same frames with the
// right addresses, which must arrive: else nothing was shown.
func (d *demo) forge(ctx context.Context) error {
	d.say("The pod %s sends raw frames: first with its own addresses, then as %s, then from a foreign MAC address, then an ARP request that claims the neighbour's address. %d of each.", sender, neighbor, forgeCount)
	from, to := d.lab.Pod(sender), d.lab.Pod(receiver)
	marker := []byte(fmt.Sprintf("weft demo %d", time.Now().UnixNano()))
	sinks, err := listenBoth(to, marker)
	if err != nil {
		return err
	}
	defer sinks.close()
	kinds, err := forgeries(from, d.lab.Pod(neighbor), sinks, marker)
	if err != nil {
		return err
	}
	client := admin.NewClient(d.lab.Node(nodeA).Socket)
	t := &table{Header: []string{"SENT BY " + sender, "DROPPED AS", "COUNTER BEFORE", "AFTER",
		"DELIVERED"}, Left: 2}
	var tallies []tally
	for _, f := range kinds {
		got, err := f.try(ctx, client, from, sinks)
		if err != nil {
			return err
		}
		tallies = append(tallies, got)
		row := []string{f.what, "-", "-", "-", fmt.Sprintf("%d of %d", got.delivered, forgeCount)}
		if f.forged() {
			row[1], row[2], row[3] = f.reason.String(), fmt.Sprint(got.before), fmt.Sprint(got.after)
		}
		t.Rows = append(t.Rows, row)
	}
	d.showTable(t)
	instance := d.lab.Node(nodeA).Instance
	for _, reason := range []bpf.Reason{bpf.ReasonSpoofedIp, bpf.ReasonSpoofedMac,
		bpf.ReasonSpoofedArp} {
		if err := d.run(ctx, "flows", "--instance", instance, "--reason", reason.String(), "--last",
			"1"); err != nil {
			return err
		}
	}
	for i, f := range kinds {
		d.judgeForgery(f, tallies[i])
	}
	return nil
}

func (f forgery) forged() bool { return f.reason != bpf.ReasonNone }

// forgeries are the frames to send.
func forgeries(from, neighbor *lab.Pod, sinks *sinkPair, marker []byte) ([]forgery, error) {
	own, err := net.ParseMAC(from.MAC)
	if err != nil {
		return nil, fmt.Errorf("MAC address of %s: %w", from.Key(), err)
	}
	gateway := endpoint.GatewayMAC
	v4, v6 := sinks.v4.at, sinks.v6.at
	return []forgery{
		{"genuine-v4", "own IPv4 address", bpf.ReasonNone, "v4",
			udpFrame(own, gateway, from.IPv4, v4, marker)},
		{"genuine-v6", "own IPv6 address", bpf.ReasonNone, "v6",
			udpFrame(own, gateway, from.IPv6, v6, marker)},
		{"spoofed-ip-v4", "source " + neighbor.IPv4.String(), bpf.ReasonSpoofedIp, "v4",
			udpFrame(own, gateway, neighbor.IPv4, v4, marker)},
		{"spoofed-ip-v6", "source " + neighbor.IPv6.String(), bpf.ReasonSpoofedIp, "v6",
			udpFrame(own, gateway, neighbor.IPv6, v6, marker)},
		{"spoofed-mac", "source MAC " + strangeMAC.String(), bpf.ReasonSpoofedMac, "v4",
			udpFrame(strangeMAC, gateway, from.IPv4, v4, marker)},
		{"spoofed-arp", "ARP: " + neighbor.IPv4.String() + " is me", bpf.ReasonSpoofedArp, "",
			inet.ARPRequest(own, neighbor.IPv4, endpoint.GatewayIPv4)},
	}, nil
}

// try sends a forgery and looks what became of it.
func (f forgery) try(ctx context.Context, client *admin.Client, from *lab.Pod,
	sinks *sinkPair) (tally, error) {
	var t tally
	began := time.Now()
	var err error
	if t.before, err = drops(ctx, client, from, f.reason); err != nil {
		return t, err
	}
	arrived := sinks.received(f.family)
	if err := sendFrames(from, f.frame, forgeCount); err != nil {
		return t, err
	}
	if !f.forged() {
		err := await(ctx,
			func() (bool, error) { return sinks.received(f.family)-arrived >= forgeCount, nil })
		t.delivered = sinks.received(f.family) - arrived
		return t, err
	}
	err = await(ctx, func() (bool, error) {
		t.after, err = drops(ctx, client, from, f.reason)
		return t.after >= t.before+forgeCount, err
	})
	if err != nil {
		return t, err
	}
	err = await(ctx, func() (bool, error) {
		t.event, err = lastDrop(ctx, client, f.reason, began)
		return t.event != nil, err
	})
	if err != nil {
		return t, err
	}
	err = pause(ctx, strayWait)
	t.delivered = sinks.received(f.family) - arrived
	return t, err
}

// judgeForgery says whether a frame met the end that it should.
func (d *demo) judgeForgery(f forgery, t tally) {
	if !f.forged() {
		d.check(f.name, t.delivered == forgeCount,
			"%d of %d frames with the pod's own addresses delivered", t.delivered, forgeCount)
		return
	}
	event := "no flow event"
	if t.event != nil {
		event = fmt.Sprintf("flow event from %s to %s", t.event.Source, t.event.Destination)
	}
	refused := t.after - min(t.before, t.after)
	d.check(f.name, refused == forgeCount && t.delivered == 0 && t.event != nil,
		"%d of %d refused as %s (counter %d, then %d), %d delivered, %s", refused, forgeCount,
		f.reason, t.before, t.after, t.delivered, event)
}

// drops is how often a pod's frames were dropped for a reason.
func drops(ctx context.Context, client *admin.Client, pod *lab.Pod,
	reason bpf.Reason) (uint64, error) {
	rows, err := client.Drops(ctx, false)
	if err != nil {
		return 0, fmt.Errorf("ask for drop counters: %w", err)
	}
	sum := uint64(0)
	for _, row := range rows {
		if row.Reason == reason.String() && row.Endpoint == pod.Key() {
			sum += row.Packets
		}
	}
	return sum, nil
}

// lastDrop is the newest flow event of a reason since a time, nil when there is none.
func lastDrop(ctx context.Context, client *admin.Client, reason bpf.Reason,
	since time.Time) (*flows.Flow, error) {
	var found *flows.Flow
	query := admin.FlowQuery{Filter: flows.Filter{Verdict: "dropped", Reason: reason.String()},
		Last: 1}
	err := client.Flows(ctx, query, func(flow flows.Flow) error {
		if !flow.Time.Before(since.Add(-clockSlack)) {
			found = &flow
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask for flow events: %w", err)
	}
	return found, nil
}

// await asks until it is so, an error comes or the time is over; the last is for the caller to
// judge.
func await(ctx context.Context, done func() (bool, error)) error {
	for deadline := time.Now().Add(forgeSettle); ; {
		ok, err := done()
		if err != nil || ok || time.Now().After(deadline) {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// sinkPair receives in a pod, over both families.
type sinkPair struct{ v4, v6 *sink }

// sink counts the packets with the demo's marker.
type sink struct {
	conn  net.PacketConn
	at    netip.AddrPort
	count atomic.Uint64
}

func listenBoth(pod *lab.Pod, marker []byte) (*sinkPair, error) {
	v4, err := listen(pod, pod.IPv4, marker)
	if err != nil {
		return nil, err
	}
	v6, err := listen(pod, pod.IPv6, marker)
	if err != nil {
		v4.conn.Close()
		return nil, err
	}
	return &sinkPair{v4, v6}, nil
}

func listen(pod *lab.Pod, addr netip.Addr, marker []byte) (*sink, error) {
	s := &sink{}
	err := pod.Do(func() (err error) {
		s.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", pod.Key(), err)
	}
	s.at = netip.AddrPortFrom(addr, s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, _, err := s.conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if bytes.Equal(buffer[:n], marker) {
				s.count.Add(1)
			}
		}
	}()
	return s, nil
}

func (s *sinkPair) received(family string) uint64 {
	switch family {
	case "v4":
		return s.v4.count.Load()
	case "v6":
		return s.v6.count.Load()
	}
	return 0
}

func (s *sinkPair) close() {
	s.v4.conn.Close()
	s.v6.conn.Close()
}
