package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
)

// PingOptions describe pings.
type PingOptions struct {
	Src      netip.Addr // bound when valid
	Dst      netip.Addr
	Count    int           // default 1
	Size     int           // ICMP payload bytes, default 56; -1 is none
	DF       bool          // never fragment, and do not believe a path MTU learnt earlier
	TTL      int           // TTL or hop limit; 0 is the system's
	Interval time.Duration // default 200 ms
	Timeout  time.Duration // per ping, default 10 s: a busy machine answers late
}

// PingReport is what pings saw.
type PingReport struct {
	Sent     int             `json:"sent"`
	Received int             `json:"received"`
	RTT      []time.Duration `json:"rtt"`
	// Errors are ICMP errors and refusals to send, for people, in order.
	Errors []string `json:"errors,omitempty"`
	// TooBig counts packets that were larger than the path, MTU is what the last of
	// those answers named (also when our own interface was the narrow one).
	TooBig int `json:"tooBig,omitempty"`
	MTU    int `json:"mtu,omitempty"`
	// TimeExceeded and Unreachable count those ICMP errors.
	TimeExceeded int `json:"timeExceeded,omitempty"`
	Unreachable  int `json:"unreachable,omitempty"`
	// Corrupt counts answers whose payload was not the one sent.
	Corrupt int `json:"corrupt,omitempty"`
}

// OK says whether every ping was answered, and rightly.
func (r PingReport) OK() bool { return r.Sent > 0 && r.Received == r.Sent && r.Corrupt == 0 }

// pinger is one raw socket and what was sent by it.
type pinger struct {
	fd      int
	opts    PingOptions
	id      uint16
	payload []byte
	report  PingReport
}

// Ping sends ICMP or ICMPv6 echo requests from a network namespace over a raw socket.
// Missing answers are not an error; see the report.
func Ping(ctx context.Context, netNS string, o PingOptions) (PingReport, error) {
	o.setDefaults()
	if !o.Dst.IsValid() {
		return PingReport{}, errors.New("ping: Dst is missing")
	}
	if o.Src.IsValid() && o.Src.Is4() != o.Dst.Is4() {
		return PingReport{}, fmt.Errorf("ping: Src %s and Dst %s are of two families", o.Src, o.Dst)
	}
	if o.Size < 0 || o.Size > 65000 {
		return PingReport{}, fmt.Errorf("ping: Size is %d: use at most 65000", o.Size)
	}
	p := &pinger{fd: -1, opts: o, id: uint16(rand.Uint32()), payload: payload(o.Size)}
	if err := netns.Do(netNS, p.open); err != nil {
		return PingReport{}, fmt.Errorf("ping %s: %w", o.Dst, err)
	}
	defer unix.Close(p.fd)
	for seq := range o.Count {
		begin := time.Now()
		if err := p.one(ctx, uint16(seq)); err != nil {
			return p.report, fmt.Errorf("ping %s: %w", o.Dst, err)
		}
		if seq+1 < o.Count {
			select {
			case <-ctx.Done():
				return p.report, nil
			case <-time.After(o.Interval - time.Since(begin)):
			}
		}
	}
	return p.report, nil
}

func (o *PingOptions) setDefaults() {
	if o.Count == 0 {
		o.Count = 1
	}
	switch o.Size {
	case 0:
		o.Size = 56
	case -1:
		o.Size = 0
	}
	if o.Interval == 0 {
		o.Interval = 200 * time.Millisecond
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
}

// open makes the socket, in the current namespace.
func (p *pinger) open() error {
	family, proto := unix.AF_INET6, unix.IPPROTO_ICMPV6
	if p.opts.Dst.Is4() {
		family, proto = unix.AF_INET, unix.IPPROTO_ICMP
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if err != nil {
		return fmt.Errorf("open raw socket: %w", err)
	}
	if err := p.setUp(fd); err != nil {
		unix.Close(fd)
		return err
	}
	p.fd = fd
	return nil
}

func (p *pinger) setUp(fd int) error {
	level, discover, recvErr, ttl := unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_RECVERR, unix.IPV6_UNICAST_HOPS
	if p.opts.Dst.Is4() {
		level, discover, recvErr, ttl = unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_RECVERR, unix.IP_TTL
	}
	// PROBE sets DF and does not believe the route's cached MTU; DONT fragments. The
	// values are the same for both families.
	how := unix.IP_PMTUDISC_DONT
	if p.opts.DF {
		how = unix.IP_PMTUDISC_PROBE
	}
	settings := []struct{ opt, value int }{{discover, how}, {recvErr, 1}}
	if p.opts.TTL > 0 {
		settings = append(settings, struct{ opt, value int }{ttl, p.opts.TTL})
	}
	for _, s := range settings {
		if err := unix.SetsockoptInt(fd, level, s.opt, s.value); err != nil {
			return fmt.Errorf("set socket option %d: %w", s.opt, err)
		}
	}
	if p.opts.Src.IsValid() {
		if err := unix.Bind(fd, sockaddr(p.opts.Src)); err != nil {
			return fmt.Errorf("bind %s: %w", p.opts.Src, err)
		}
	}
	if err := unix.Connect(fd, sockaddr(p.opts.Dst)); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

// one sends a ping and waits for its answer or error.
func (p *pinger) one(ctx context.Context, seq uint16) error {
	sent := time.Now()
	p.report.Sent++
	if err := unix.Send(p.fd, inet.Echo(p.opts.Dst.Is4(), p.id, seq, p.payload), 0); err != nil {
		return p.refused(err)
	}
	deadline := sent.Add(p.opts.Timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	for ctx.Err() == nil && time.Now().Before(deadline) {
		// In short waits, so that a cancelled context is noticed.
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		wait := min(time.Until(deadline), 100*time.Millisecond)
		if _, err := unix.Poll(fds, int(wait.Milliseconds())+1); err != nil &&
			!errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		if fds[0].Revents&unix.POLLERR != 0 && p.readError() {
			return nil
		}
		if fds[0].Revents&unix.POLLIN != 0 && p.readReply(seq, sent) {
			return nil
		}
	}
	return nil
}

// refused records a packet that the kernel would not send.
func (p *pinger) refused(err error) error {
	p.report.Errors = append(p.report.Errors, "send: "+err.Error())
	switch {
	case errors.Is(err, unix.EMSGSIZE):
		p.report.TooBig++
		p.readError() // names our own interface's MTU
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		p.report.Unreachable++
	default:
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// readReply reads one packet and says whether it was the answer.
func (p *pinger) readReply(seq uint16, sent time.Time) bool {
	buf := make([]byte, 1<<16)
	n, _, err := unix.Recvfrom(p.fd, buf, 0)
	if err != nil {
		return false
	}
	b, want := buf[:n], byte(inet.EchoReply6)
	if p.opts.Dst.Is4() {
		want = inet.EchoReply4
		b, _ = inet.SkipIPv4(b)
	}
	if len(b) < inet.ICMPLen || b[0] != want || binary.BigEndian.Uint16(b[4:]) != p.id ||
		binary.BigEndian.Uint16(b[6:]) != seq {
		return false
	}
	if !bytes.Equal(b[inet.ICMPLen:], p.payload) {
		p.report.Corrupt++
	}
	p.report.Received++
	p.report.RTT = append(p.report.RTT, time.Since(sent))
	return true
}
