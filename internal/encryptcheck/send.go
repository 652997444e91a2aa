package encryptcheck

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
)

const (
	// probeSize is how many marked bytes a packet carries: below every path's MTU, and enough
	// for the marker to be whole several times.
	probeSize = 512
	// discardPort is nobody's (RFC 863): a probe disturbs no service.
	discardPort = 9
	// dynamicPort is the first of 16384 ports to send from (RFC 6335).
	dynamicPort = 49152
)

// Probe says who sends marked packets to whom.
type Probe struct {
	// NetNS is the path of the sender's network namespace, empty for the caller's own.
	NetNS string
	Dst   netip.Addr
}

// Sent counts marked packets.
type Sent struct {
	UDP  uint64 `json:"udp"`
	TCP  uint64 `json:"tcp"`
	ICMP uint64 `json:"icmp"`
	// Refused are those that the sender's own stack did not take; Error is why, for the last.
	Refused uint64 `json:"refused,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Total is how many were sent.
func (s Sent) Total() uint64 { return s.UDP + s.TCP + s.ICMP }

func (s *Sent) add(o Sent) {
	s.UDP, s.TCP, s.ICMP, s.Refused = s.UDP+o.UDP, s.TCP+o.TCP, s.ICMP+o.ICMP, s.Refused+o.Refused
	if o.Error != "" {
		s.Error = o.Error
	}
}

// sender has the sockets of a probe: raw ones, as TCP's first packet carries no payload else.
type sender struct {
	udp, tcp, icmp int
	src, dst       netip.Addr
	payload        []byte
	round          uint16
	sent           Sent
}

func openSender(p Probe, marker []byte) (*sender, error) {
	if !p.Dst.IsValid() {
		return nil, errors.New("send marked packets: no destination is named")
	}
	s := &sender{udp: -1, tcp: -1, icmp: -1, dst: p.Dst.Unmap(), payload: Fill(marker, probeSize),
		round: uint16(rand.Uint32())}
	if err := netns.Do(p.NetNS, s.open); err != nil {
		s.close()
		return nil, fmt.Errorf("send marked packets to %s: %w", p.Dst, err)
	}
	return s, nil
}

// open makes the sockets in the current namespace.
func (s *sender) open() (err error) {
	family, icmp := unix.AF_INET, unix.IPPROTO_ICMP
	if s.dst.Is6() {
		family, icmp = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	if s.udp, err = s.connect(family, unix.SOCK_DGRAM, 0, discardPort); err != nil {
		return err
	}
	if s.tcp, err = s.connect(family, unix.SOCK_RAW, unix.IPPROTO_TCP, 0); err != nil {
		return err
	}
	if s.icmp, err = s.connect(family, unix.SOCK_RAW, icmp, 0); err != nil {
		return err
	}
	name, err := unix.Getsockname(s.udp)
	if err != nil {
		return fmt.Errorf("read own address: %w", err)
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		s.src = netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		s.src = netip.AddrFrom16(a.Addr)
	}
	return nil
}

func (s *sender) connect(family, kind, protocol, port int) (int, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return -1, fmt.Errorf("open socket (as root?): %w", err)
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: s.dst.As16(), Port: port}
	if s.dst.Is4() {
		to = &unix.SockaddrInet4{Addr: s.dst.As4(), Port: port}
	}
	if err := unix.Connect(fd, to); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("no way to the address: %w", err)
	}
	return fd, nil
}

// send sends one packet of each protocol.
func (s *sender) send() {
	s.round++
	port := uint16(dynamicPort + s.round%(1<<16-dynamicPort))
	s.one(&s.sent.UDP, s.udp, s.payload)
	s.one(&s.sent.TCP, s.tcp, s.syn(port))
	s.one(&s.sent.ICMP, s.icmp, inet.Echo(s.dst.Is4(), 0, s.round, s.payload))
}

func (s *sender) one(count *uint64, fd int, packet []byte) {
	err := unix.Send(fd, packet, unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.ECONNREFUSED) {
		err = unix.Send(fd, packet, unix.MSG_NOSIGNAL) // that was the answer to the packet before
	}
	if err != nil {
		s.sent.Refused++
		s.sent.Error = err.Error()
		return
	}
	*count++
}

// syn is a TCP connection attempt with data (RFC 9293 allows it); the receiver answers and forgets
// the data.
func (s *sender) syn(port uint16) []byte {
	b := inet.TCP(inet.TCPHeader{
		SrcPort: port, DstPort: discardPort, Seq: rand.Uint32(), Flags: inet.SYN, Window: 65535,
	}, s.payload)
	inet.SetTransportChecksum(s.src, s.dst, unix.IPPROTO_TCP, b)
	return b
}

func (s *sender) close() {
	for _, fd := range []int{s.udp, s.tcp, s.icmp} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
