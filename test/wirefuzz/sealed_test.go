package wirefuzz

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
)

// Ports of the honest flow between client and server, which is sealed on the wire.
const (
	clientPort = 40001
	serverPort = 40002
	espPort    = 4500
)

// talk is one end of the honest flow, by one family.
type talk struct {
	from, to *lab.Pod
	src, dst netip.Addr
	conn     *net.UDPConn
}

// startTalks opens both ends of the honest flow. Neither end answers by itself.
func (b *harness) startTalks(t *testing.T) {
	t.Helper()
	client, server := b.lab.Pod("client"), b.lab.Pod("server")
	for _, family := range []int{4, 6} {
		c, s := netip.AddrPortFrom(client.Addr(family),
			clientPort), netip.AddrPortFrom(server.Addr(family), serverPort)
		b.honest = append(b.honest, newTalk(t, client, server, c, s),
			newTalk(t, server, client, s, c))
	}
}

func newTalk(t *testing.T, from, to *lab.Pod, own, peer netip.AddrPort) *talk {
	t.Helper()
	k := &talk{from: from, to: to, src: own.Addr(), dst: peer.Addr()}
	err := from.Do(func() (err error) {
		k.conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(own),
			net.UDPAddrFromAddrPort(peer))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.conn.Close() })
	return k
}

func (k *talk) say(text []byte) {
	// An ICMP error that a forged frame has brought about is an error of the socket once, and no
	// packet is sent then.
	if _, err := k.conn.Write(text); err != nil {
		_, _ = k.conn.Write(text)
	}
}

// heldPacket is a pod's packet that its node has sealed and the wire has kept back.
type heldPacket struct {
	id    uint32
	esp   []byte // from the SPI to the end
	inner []byte // what the specification may read of it: an Ethernet frame with the packet's headers
	to    string // the pod
	used  bool
}

// hold has the pods of one node send packets to the other's and keeps them from arriving.
func (r *referee) hold(t *testing.T, to string, count int) {
	t.Helper()
	var talks []*talk
	for _, k := range r.honest {
		if k.to.Node == to {
			talks = append(talks, k)
		}
	}
	r.speak(t) // neighbours are known, then
	ports := map[string]string{"a": "p0", "b": "p1"}
	fd := packetSocket(t, r.wire, ports[other(to)], true)
	r.blocked(t, ports[to], func() {
		for i := range count {
			k := talks[i%len(talks)]
			id := r.newID(nil)
			text := make([]byte, 300+4*(i/4%8))
			copy(text, r.tap.marker(id))
			// A CPU has a lane: half of them has the one that a sealer opens.
			if err := onCPU(i/4, func() error { k.say(text); return nil }); err != nil {
				t.Fatal(err)
			}
			h := &heldPacket{id: id, to: k.to.Name, esp: waitSealed(t, fd, len(text))}
			r.idents[k.from.Name] = binary.BigEndian.Uint32(h.esp) & 0x3fffff
			h.inner = datagram(nil, k.src, k.dst, clientPort, serverPort, text, 64)
			r.held[to] = append(r.held[to], h)
		}
	})
}

// blocked has a port of the bridge forward nothing while fn runs.
func (b *harness) blocked(t *testing.T, port string, fn func()) {
	must(t, b.wire, "bridge", "link", "set", "dev", port, "state", "0")
	defer must(t, b.wire, "bridge", "link", "set", "dev", port, "state", "3")
	fn()
}

// waitSealed reads frames until one has an ESP packet of about that text.
func waitSealed(t *testing.T, fd, text int) []byte {
	t.Helper()
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})
	buf := make([]byte, 1<<16)
	for begin := time.Now(); time.Since(begin) < patience; {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if ll, ok := from.(*unix.SockaddrLinklayer); err != nil || !ok ||
			ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		f := buf[:n]
		if n < 14+20+8+16+text || be16(f[12:]) != 0x0800 || f[23] != 17 ||
			be16(f[36:]) != espPort || binary.BigEndian.Uint32(f[42:]) == 0 {
			continue
		}
		if esp := f[42 : 34+be16(f[38:])]; len(esp) < 16+text+100 {
			return bytes.Clone(esp)
		}
	}
	t.Fatal("a pod's packet was not seen on the wire")
	return nil
}

// takenOver has a node's own datapath seal whatever we like, as a peer that somebody has taken over
// could: it is given to the pair, which seals everything that says for whom.
type takenOver struct{ fd int }

func (b *harness) newPeer(t *testing.T, node string) *takenOver {
	t.Helper()
	return &takenOver{packetSocket(t, b.lab.Node(node).NetNS, "weft_host", false)}
}

// send seals the packet of an Ethernet frame for the node of that number, in that identity's name.
func (s *takenOver) send(frame []byte, node uint16, identity uint32) error {
	head := []byte{0x02, 'W', 'E', 'F'}
	head = binary.BigEndian.AppendUint16(head, node)
	head = append(head, 0, 0)
	head = binary.BigEndian.AppendUint32(head, identity)
	return unix.Send(s.fd, append(head, frame[12:]...), 0)
}

// findNumbers learns by which number each node's datapath knows the other: the one under which an
// honest packet arrives.
func (r *referee) findNumbers(t *testing.T) {
	t.Helper()
	for _, node := range []string{"a", "b"} {
		from, to := "client", "server"
		if node == "b" {
			from, to = to, from
		}
		r.evil[node] = r.newPeer(t, node) // one for each mode: the pair may be made anew
		eventually(t, "the number of "+other(node)+" at "+node, func() error {
			for n := uint16(1); n < 6; n++ {
				id := r.newID(nil)
				frame := datagram(nil, r.lab.Pod(from).IPv4, r.lab.Pod(to).IPv4, 1, 2,
					r.tap.marker(id), 64)
				if err := r.evil[node].send(frame, n, r.idents[from]); err != nil {
					return err
				}
				time.Sleep(30 * time.Millisecond)
				if r.tap.at(id, to) {
					r.number[node] = n
					return nil
				}
			}
			return fmt.Errorf("none of the first")
		})
	}
}

// hostIdentity is the number of a host's own packets in an SPI (docs/encryption.md: "the identity
// host").
const hostIdentity = 1

// datagram is a whole Ethernet frame with a UDP datagram; macs may be nil.
func datagram(macs []byte, src, dst netip.Addr, sport, dport uint16, text []byte,
	ttl uint8) []byte {
	udp := finish(src, dst, unix.IPPROTO_UDP, inet.UDP(sport, dport, text))
	return ethernet(macs, header{src: src, dst: dst, proto: unix.IPPROTO_UDP, ttl: ttl}.wrap(udp))
}
