package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// Where a sealed frame over IPv4 has its sequence number and its IV.
const (
	seqAt = inet.EthernetLen + inet.IPv4Len + inet.UDPLen + 4
	ivAt  = seqAt + 4
)

// intrusion is a frame on the wire that node b must refuse.
type intrusion struct {
	name, what string
	reason     bpf.Reason
	frame      []byte
}

// intrude puts frames on the wire that nobody may send: a sealed packet again, one that was never
// sealed with the key, one from an unknown address, and a plain one from a pod of the other node.
func (d *demo) intrude(ctx context.Context) error {
	d.say("Somebody on the wire captures a sealed packet of %s on its way to node %s, and sends node %s %d frames of each kind. The genuine one was delivered; nothing else may be.", sender, nodeB, nodeB, forgeCount)
	marker := encryptcheck.NewMarker()
	sinks, err := listenBoth(d.lab.Pod(receiver), secret(marker))
	if err != nil {
		return err
	}
	defer sinks.close()
	genuine, err := d.capture(ctx, sinks, secret(marker))
	if err != nil {
		return err
	}
	kinds := intrusions(genuine, d.lab.Pod(sender).IPv4, sinks.v4.at, secret(marker))
	t := &table{Header: []string{"ON THE WIRE", "DROPPED AS", "COUNTER BEFORE", "AFTER",
		"DELIVERED"}, Left: 2}
	tallies := make([]tally, len(kinds))
	for i, kind := range kinds {
		if tallies[i], err = d.tryWire(ctx, kind, sinks); err != nil {
			return err
		}
		got := tallies[i]
		t.Rows = append(t.Rows,
			[]string{kind.what, kind.reason.String(), fmt.Sprint(got.before), fmt.Sprint(got.after),
				fmt.Sprintf("%d of %d", got.delivered, forgeCount)})
	}
	d.showTable(t)
	if err := d.run(ctx, "drops", "--instance", d.lab.Node(nodeB).Instance); err != nil {
		return err
	}
	for i, kind := range kinds {
		got := tallies[i]
		d.check(kind.name, got.after-got.before == forgeCount && got.delivered == 0,
			"%d of %d refused as %s (counter %d, then %d), %d delivered", got.after-got.before,
			forgeCount, kind.reason, got.before, got.after, got.delivered)
	}
	return nil
}

// tryWire puts a frame on the wire and looks what became of it.
func (d *demo) tryWire(ctx context.Context, kind intrusion, sinks *sinkPair) (t tally, err error) {
	client := admin.NewClient(d.lab.Node(nodeB).Socket)
	arrived := sinks.received("v4")
	if t.before, err = reasonCount(ctx, client, kind.reason); err != nil {
		return t, err
	}
	if err := onWire(d.lab.Node(nodeA), kind.frame, forgeCount); err != nil {
		return t, err
	}
	err = await(ctx, func() (bool, error) {
		t.after, err = reasonCount(ctx, client, kind.reason)
		return t.after >= t.before+forgeCount, err
	})
	if err != nil {
		return t, err
	}
	err = pause(ctx, strayWait)
	t.delivered = sinks.received("v4") - arrived
	return t, err
}

// intrusions are the frames, made from a genuine one; the last is plain, from a pod to a receiver.
func intrusions(genuine []byte, from netip.Addr, to netip.AddrPort, text []byte) []intrusion {
	forged := bytes.Clone(genuine)
	// A number that was not seen yet: only the tag can tell.
	binary.BigEndian.PutUint32(forged[seqAt:], binary.BigEndian.Uint32(genuine[seqAt:])+100)
	binary.BigEndian.PutUint64(forged[ivAt:], binary.BigEndian.Uint64(genuine[ivAt:])+100)
	_, _ = rand.Read(forged[ivAt+8:])
	unknown := bytes.Clone(genuine)
	ip := unknown[inet.EthernetLen:]
	copy(ip[12:], netip.MustParseAddr("203.0.113.66").AsSlice())
	inet.SetIPv4Checksum(ip)
	plain := udpFrame(net.HardwareAddr(genuine[6:12]), net.HardwareAddr(genuine[:6]), from, to,
		text)
	return []intrusion{
		{"wire-replayed", "the captured packet again", bpf.ReasonEspReplayed, genuine},
		{"wire-forged", "its headers, other bytes", bpf.ReasonEspBadTag, forged},
		{"wire-unknown", "it, from 203.0.113.66", bpf.ReasonEspUnknownPeer, unknown},
		{"wire-plain", "plain, as if from " + sender, bpf.ReasonPlaintext, plain},
	}
}

// capture has the pod send one message and returns its sealed frame.
func (d *demo) capture(ctx context.Context, sinks *sinkPair, text []byte) ([]byte, error) {
	node := d.lab.Node(nodeB)
	capture, err := encryptcheck.Open(node.NetNS, node.Uplinks...)
	if err != nil {
		return nil, err
	}
	defer capture.Close()
	err = d.lab.Pod(sender).Do(func() error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(sinks.v4.at))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(text)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("send from %s: %w", sender, err)
	}
	if err := await(ctx,
		func() (bool, error) { return sinks.received("v4") > 0, nil }); err != nil {
		return nil, err
	}
	var found []byte
	over, cancel := context.WithTimeout(ctx, time.Second/2)
	defer cancel()
	err = capture.Run(over, func(f encryptcheck.Frame) {
		p, err := inet.Parse(f.Data)
		if _, sealed := encryptcheck.ParseESP(p, encryptcheck.DefaultPort); err == nil && sealed &&
			!f.Outgoing && p.Dst.Is4() && len(f.Data) > espHeaders+len(text) {
			found = bytes.Clone(f.Data)
		}
	})
	if err == nil && found == nil {
		err = errors.New("the packet was not seen on the wire")
	}
	return found, err
}

// reasonCount is how often node b dropped packets for a reason.
func reasonCount(ctx context.Context, client *admin.Client, reason bpf.Reason) (uint64, error) {
	rows, err := client.Drops(ctx, false)
	if err != nil {
		return 0, fmt.Errorf("ask for drop counters: %w", err)
	}
	sum := uint64(0)
	for _, row := range rows {
		if row.Reason == reason.String() {
			sum += row.Packets
		}
	}
	return sum, nil
}

// onWire sends frames out of a node's end of the wire, past the node's own programs.
func onWire(node *lab.Node, frame []byte, count int) error {
	return netns.Do(node.NetNS, func() error {
		link, err := net.InterfaceByName(node.Uplinks[0])
		if err != nil {
			return fmt.Errorf("find %s: %w", node.Uplinks[0], err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open raw socket: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
			return fmt.Errorf("pass the node's own hooks: %w", err)
		}
		for range count {
			if err := unix.Sendto(fd, frame, 0,
				&unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil {
				return fmt.Errorf("send raw frame: %w", err)
			}
		}
		return nil
	})
}
