package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// The victim's flows have these source ports; those that it opens while it is flooded the ones from
// freshPort up, each once, also if the tests run again in the same lab.
const (
	victimUDP, victimTCP = 800, 200
	victimPort           = 10_000
	halvesPort           = 9108
)

var freshPort uint16 = 12_000

// victim is a pod that goes on with its work while a neighbour floods the node.
type victim struct {
	lab         *lab.Lab
	pod, server *lab.Pod
	flows       *traffic.Flows
	since       time.Time // its flows are older
	budgets     map[string]datapath.Budget
	drops       map[string]uint64

	fragments time.Time // when it sent some last
	datagram  uint16    // the last that it sent in halves
	halves    *listener

	fresh []uint16 // source ports of flows that it has opened since, of UDP and of TCP each
	mu    sync.Mutex
	told  map[string]bool // protocol and source port of the new flows that the flow log has told
}

// newVictim gives a pod its flows, and notes what its budgets have cost it so far.
func newVictim(t *testing.T, l *lab.Lab, pod, server *lab.Pod) *victim {
	t.Helper()
	v := &victim{lab: l, pod: pod, server: server, told: map[string]bool{}}
	v.flows = v.open(t, traffic.FlowsOptions{UDP: victimUDP, TCP: victimTCP, FirstPort: victimPort})
	v.exchange(t)
	v.since = time.Now()
	// Its own share of the events is used up by its thousand flows: a second later it has it again.
	time.Sleep(1100 * time.Millisecond)
	v.budgets, v.drops = v.budgetRows(t), v.dropRows(t)
	v.follow(t)
	v.halves = listen(t, server, halvesPort)
	return v
}

func (v *victim) open(t *testing.T, o traffic.FlowsOptions) *traffic.Flows {
	t.Helper()
	o.From, o.Src, o.Dst = v.pod.NetNS, v.pod.IPv4, netip.AddrPortFrom(v.server.IPv4, echoPort)
	f, err := traffic.OpenFlows(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// follow collects what the flow log tells of the victim's new flows.
func (v *victim) follow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	query := admin.FlowQuery{Filter: flows.Filter{From: []string{v.pod.Namespace + "/" +
		v.pod.Name}}, Last: -1, Follow: true}
	go func() {
		defer close(done)
		err := admin.NewClient(v.node("a").Socket).Flows(ctx, query, func(f flows.Flow) error {
			if f.Type == datapath.EventNew {
				v.mu.Lock()
				defer v.mu.Unlock()
				v.told[fmt.Sprint(f.Protocol, f.Source.Port)] = true
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			t.Errorf("follow the flow log: %v", err)
		}
	}()
}

func (v *victim) node(name string) *lab.Node { return v.lab.Node(name) }

// exchange has every flow carry a message and its answer; a reset, or an answer that never comes,
// ends the test.
func (v *victim) exchange(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := v.flows.Exchange(ctx); err != nil {
		t.Fatalf("the victim's flows: %v; drops: %s", err, dropText(t, v.node("a")))
	}
}

// somethingNew opens a flow of each protocol, once a second sends a datagram in fragments that is
// answered in fragments, and asks for an ICMP error.
func (v *victim) somethingNew(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	fresh := v.open(t, traffic.FlowsOptions{UDP: 1, TCP: 1, FirstPort: freshPort})
	v.fresh = append(v.fresh, freshPort)
	freshPort += 2
	if err := fresh.Exchange(ctx); err != nil {
		t.Errorf("a new flow of the victim's: %v", err)
	}
	// Datagrams of the same second may have the same place by chance: then the victim itself pushes
	// one out.
	if time.Since(v.fragments) > fragmentsApart {
		v.fragments = time.Now()
		if _, err := traffic.EchoUDP(ctx, v.pod.NetNS, v.pod.IPv4,
			netip.AddrPortFrom(v.server.IPv4, echoPort), 4000); err != nil {
			t.Errorf("a datagram in fragments: %v", err)
		}
	}
	v.despiteQueues(t, "a ping with TTL 1", func() error {
		ping, err := traffic.Ping(ctx, v.pod.NetNS,
			traffic.PingOptions{Dst: v.server.IPv4, TTL: 1, Timeout: answerTime})
		if err == nil && ping.TimeExceeded != 1 {
			err = fmt.Errorf("%+v, want an ICMP error", ping)
		}
		return err
	})
}

// answerTime is how long what is sent once is waited for before the queues are asked whether they
// have lost it.
const answerTime = 5 * time.Second

// despiteQueues tries what is sent only once again, if the kernel's queues, through which the flood
// goes too, have lost something meanwhile.
func (v *victim) despiteQueues(t *testing.T, what string, try func() error) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		before := kernelLosses(t, v.lab)
		err := try()
		if err == nil {
			return
		}
		if attempt == 5 || maps.Equal(before, kernelLosses(t, v.lab)) {
			t.Errorf("%s, attempt %d: %v", what, attempt, err)
			return
		}
		t.Logf("%s: %v; the kernel's queues lost packets: once more", what, err)
	}
}

// fragmentsApart is how long a victim waits before it begins another datagram in fragments.
const fragmentsApart = 1100 * time.Millisecond

// inHalves sends a datagram in two fragments, with something between them, and waits for it.
func (v *victim) inHalves(t *testing.T, between func()) error {
	t.Helper()
	v.half(t, false)
	between()
	v.half(t, true)
	select {
	case <-v.halves.got:
		return nil
	case <-time.After(answerTime):
		return errors.New("nothing arrived")
	}
}

// half sends one of two fragments of a datagram that the server listens for at v.halves.
func (v *victim) half(t *testing.T, second bool) {
	t.Helper()
	if !second {
		v.datagram++
		time.Sleep(fragmentsApart - time.Since(v.fragments))
		v.fragments = time.Now()
	}
	udp := make([]byte, 32) // no checksum, which IPv4 allows
	binary.BigEndian.PutUint16(udp, 9)
	binary.BigEndian.PutUint16(udp[2:], halvesPort)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	ip := &layers.IPv4{Version: 4, TTL: 64, Id: 4242 + v.datagram, Protocol: layers.IPProtocolUDP,
		SrcIP: v.pod.IPv4.AsSlice(), DstIP: v.server.IPv4.AsSlice()}
	payload := gopacket.Payload(udp[:16])
	if second {
		ip.FragOffset, payload = 2, gopacket.Payload(udp[16:])
	} else {
		ip.Flags = layers.IPv4MoreFragments
	}
	openEnd(t, v.pod.NetNS, v.pod.IfName, false).send(t,
		ground(ethernet(mac(v.pod.MAC), gatewayMAC, layers.EthernetTypeIPv4), ip, payload))
}

// held looks for the victim's flows in the table: each is there, and as old as it is.
func (v *victim) held(t *testing.T, n *lab.Node) {
	t.Helper()
	least := time.Since(v.since)
	rows, err := admin.NewClient(n.Socket).FlowTable(t.Context(), 2*floodEntries)
	if err != nil {
		t.Fatal(err)
	}
	left, anew := 0, 0
	for _, row := range rows {
		port := row.Source.Port
		if row.Source.IP != v.pod.IPv4 || row.Destination.Port != echoPort || port < victimPort ||
			port >= victimPort+victimUDP+victimTCP {
			continue
		}
		age, err := time.ParseDuration(row.Age)
		if err != nil {
			t.Fatal(err)
		}
		// The datapath's clock ticks.
		if left++; age < least-50*time.Millisecond || row.ViaStack {
			anew++
		}
	}
	if left != victimUDP+victimTCP || anew > 0 {
		t.Errorf("of the victim's %d flows %d are left; %d of them were made anew",
			victimUDP+victimTCP, left, anew)
	}
}

// budgetOf is what a pod of a node has in the budget of what it begins itself.
func budgetOf(t *testing.T, n *lab.Node, pod *lab.Pod) datapath.Budget {
	t.Helper()
	for _, b := range budgetsOf(t, n, pod) {
		if b.Direction == "egress" {
			return b
		}
	}
	return datapath.Budget{}
}

func budgetsOf(t *testing.T, n *lab.Node, pod *lab.Pod) []datapath.Budget {
	t.Helper()
	endpoints, err := admin.NewClient(n.Socket).Endpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range endpoints {
		if e.IPv4 == pod.IPv4 {
			return e.Budgets
		}
	}
	t.Fatalf("node %s has no endpoint of %s", n.Name, pod.Name)
	return nil
}

// budgetRows are the budgets of both ends of the victim's flows, without what they hold.
func (v *victim) budgetRows(t *testing.T) map[string]datapath.Budget {
	t.Helper()
	out := map[string]datapath.Budget{}
	for node, pod := range map[string]*lab.Pod{"a": v.pod, "b": v.server} {
		for _, b := range budgetsOf(t, v.node(node), pod) {
			b.Flows = 0
			out[pod.Name+" "+b.Direction] = b
		}
	}
	return out
}

// dropRows count what was dropped of both ends, by reason; the pings whose TTL runs out are meant
// to be.
func (v *victim) dropRows(t *testing.T) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, node := range []string{"a", "b"} {
		drops, err := admin.NewClient(v.node(node).Socket).Drops(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range drops {
			for _, pod := range []*lab.Pod{v.pod, v.server} {
				if d.Endpoint == pod.Namespace+"/"+pod.Name && d.Reason != "ttl_exceeded" {
					out[node+" "+pod.Name+" "+d.Direction+" "+d.Reason] += d.Packets
				}
			}
		}
	}
	return out
}

// budgetsUntouched: nothing of the victim's was evicted, refused, forgotten, suppressed or dropped.
func (v *victim) budgetsUntouched(t *testing.T) {
	t.Helper()
	for key, now := range v.budgetRows(t) {
		before := v.budgets[key]
		before.Slot, before.Direction = now.Slot, now.Direction
		if now != before {
			t.Errorf("budget of %s: %+v, before the flood %+v", key, now, before)
		}
	}
	if now := v.dropRows(t); !maps.Equal(now, v.drops) {
		t.Errorf("dropped of the victim's: %v, before the flood %v", now, v.drops)
	}
}

// eventsTold: the flow log has told of each of the victim's new flows.
func (v *victim) eventsTold(t *testing.T) {
	t.Helper()
	eventually(t, "the victim's flow events", func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		var missing []error
		for _, port := range v.fresh {
			for protocol, port := range map[string]uint16{"udp": port, "tcp": port + 1} {
				if key := fmt.Sprint(protocol, port); !v.told[key] {
					missing = append(missing, fmt.Errorf("nothing told of %s", key))
				}
			}
		}
		return errors.Join(missing...)
	})
}

// nothingLost: what is missing of the victim's datagrams, the kernel's queues have thrown away, as
// it counted itself: a veth's ring holds 256 packets, and the flood goes through the wire's, too.
func (v *victim) nothingLost(t *testing.T, before map[string]uint64) {
	t.Helper()
	lost, sent := v.flows.Lost()
	var queues uint64
	for key, now := range kernelLosses(t, v.lab) {
		queues += now - before[key]
	}
	t.Logf("of the victim's %d datagrams %d were lost; the kernel's queues lost %d packets", sent,
		lost, queues)
	if lost > queues {
		t.Errorf("%d of %d datagrams were lost, and the kernel's queues lost %d packets only", lost,
			sent, queues)
	}
}
