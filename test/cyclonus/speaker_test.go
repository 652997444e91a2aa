package cyclonus

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/test/labtest"
)

// speaker is a pod with a socket that sends whole packets, and one that sees what comes in.
type speaker struct {
	*lab.Pod
	out, in int
}

// probe is one packet: who sends what to whom. Its source port is the round's, so that each round's
// are flows of their own.
type probe struct {
	from, to netip.Addr
	protocol uint8
	port     uint16
}

func (p probe) String() string {
	return fmt.Sprintf("%s → %s %s/%d", p.from, p.to, inet.ProtocolName(p.protocol), p.port)
}

func newSpeaker(p *lab.Pod) (*speaker, error) {
	s := &speaker{Pod: p, out: -1, in: -1}
	err := p.Do(func() (err error) {
		if s.out, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			unix.IPPROTO_RAW); err != nil {
			return err
		}
		s.in, err = labtest.Sniffer(p.IfName)
		return err
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("sockets of pod %s: %w", p.Name, err)
	}
	return s, nil
}

func (s *speaker) close() {
	for _, fd := range []int{s.out, s.in} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// say sends a probe: of TCP a SYN, of SCTP an INIT (RFC 9260).
func (s *speaker) say(p probe, round uint16) error {
	packet := inet.Packet{Src: p.from, Dst: p.to, TTL: inet.DefaultTTL}
	switch p.protocol {
	case policy.UDP:
		packet = packet.UDP(round, p.port, []byte("cyclonus"))
	case policy.TCP:
		packet = packet.TCP(inet.TCPHeader{SrcPort: round, DstPort: p.port, Flags: inet.SYN}, nil)
	default:
		packet.Protocol, packet.Payload = p.protocol, initiation(round, p.port)
	}
	err := unix.Sendto(s.out, packet.IP(), 0, &unix.SockaddrInet4{Addr: p.to.As4()})
	if err != nil {
		return fmt.Errorf("send %s: %w", p, err)
	}
	return nil
}

// initiation is an INIT chunk behind SCTP's common header. Nobody here looks at its checksum.
func initiation(from, to uint16) []byte {
	out := make([]byte, 32)
	binary.BigEndian.PutUint16(out, from)
	binary.BigEndian.PutUint16(out[2:], to)
	out[12], out[15] = 1, 20
	binary.BigEndian.PutUint32(out[16:], 1)
	binary.BigEndian.PutUint16(out[24:], 1)
	binary.BigEndian.PutUint16(out[26:], 1)
	return out
}

// heard tells of every packet that has come in, with its round.
func (s *speaker) heard(tell func(round uint16, p probe)) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(s.in, buf, 0)
		if err != nil {
			return
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		h, errParse := inet.Parse(buf[:n])
		if !ok || ll.Pkttype == unix.PACKET_OUTGOING || errParse != nil || h.Dst != s.IPv4 {
			continue
		}
		if h.Protocol == policy.SCTP && len(h.Payload) >= 4 {
			h.SrcPort = binary.BigEndian.Uint16(h.Payload)
			h.DstPort = binary.BigEndian.Uint16(h.Payload[2:])
		}
		tell(h.SrcPort, probe{h.Src, h.Dst, h.Protocol, h.DstPort})
	}
}
