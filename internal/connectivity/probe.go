package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// smallPayload is what ping sends.
const smallPayload = 56

// probe tests one pair in one family by one protocol.
type probe struct {
	pair
	family   string
	protocol string
	opt      Options
	server   server
}

func (p *probe) run(ctx context.Context) []Result {
	if p.protocol == "tcp" {
		return []Result{p.transfer(ctx)}
	}
	results := []Result{p.echo(ctx, "small", p.headers()+smallPayload)}
	mtu := p.pathMTU()
	if mtu < p.headers()+smallPayload {
		return results
	}
	return append(results, p.echo(ctx, "mtu", mtu), p.over(ctx, mtu))
}

// headers is the size of IP and UDP or ICMP headers: both of the latter have 8 bytes.
func (p *probe) headers() int {
	if p.family == "v4" {
		return 20 + 8
	}
	return 40 + 8
}

func (p *probe) result(test string, size int) Result {
	return Result{From: p.from.Name, To: p.to.Name, Family: p.family, Protocol: p.protocol,
		Test: test, Size: size}
}

// echo sends a packet of a size and expects the same payload back.
func (p *probe) echo(ctx context.Context, test string, size int) Result {
	result := p.result(test, size)
	for try := 1; try <= p.opt.Tries && ctx.Err() == nil; try++ {
		rtt, err := p.exchange(size)
		if err == nil {
			result.OK, result.RTT, result.Detail = true, micros(rtt), ""
			if try > 1 {
				result.Detail = fmt.Sprintf("answered at attempt %d", try)
			}
			return result
		}
		result.Detail = explain(err)
	}
	return result
}

// over sends one byte more than fits and expects to be told so, with the right size.
// The first packet may leave and be refused on the way; then the answer comes later.
func (p *probe) over(ctx context.Context, mtu int) Result {
	result := p.result("over", mtu+1)
	for try := 1; try <= p.opt.Tries && ctx.Err() == nil; try++ {
		_, err := p.exchange(mtu + 1)
		switch {
		case err == nil:
			result.Detail = fmt.Sprintf("a packet larger than the path's MTU %d was delivered", mtu)
			return result
		case errors.Is(err, unix.EMSGSIZE):
			known, err := p.knownMTU()
			if err != nil {
				result.Detail = explain(err)
				return result
			}
			result.OK = known == mtu
			result.Detail = fmt.Sprintf("refused: MTU %d", known)
			if !result.OK {
				result.Detail = fmt.Sprintf("refused, but for MTU %d and not %d", known, mtu)
			}
			return result
		}
		result.Detail = explain(err)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			result.Detail = "vanished: nobody said that it is too big"
		}
	}
	return result
}

// exchange sends one packet and waits for its echo.
func (p *probe) exchange(size int) (time.Duration, error) {
	socket, err := p.dial()
	if err != nil {
		return 0, err
	}
	defer socket.Close()
	message := p.message(size - p.headers())
	if err := socket.SetDeadline(time.Now().Add(p.opt.Timeout)); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := socket.Write(message.wire); err != nil {
		return 0, err
	}
	buffer := make([]byte, 1<<16)
	for {
		count, err := socket.Read(buffer)
		if err != nil {
			return 0, err
		}
		if message.answeredBy(buffer[:count]) {
			return time.Since(began), nil
		}
	}
}

// dial makes a connected socket in the sender's network namespace that never fragments.
func (p *probe) dial() (net.Conn, error) {
	var socket net.Conn
	from, to := p.from.addr(p.family), p.to.addr(p.family)
	err := netns.Do(p.from.NetNS, func() (err error) {
		dialer := net.Dialer{Control: p.dontFragment}
		switch {
		case p.protocol == "udp":
			dialer.LocalAddr = &net.UDPAddr{IP: from.AsSlice()}
			socket, err = dialer.Dial("udp", p.server.udp.String())
		case p.family == "v4":
			dialer.LocalAddr = &net.IPAddr{IP: from.AsSlice()}
			socket, err = dialer.Dial("ip4:icmp", to.String())
		default:
			dialer.LocalAddr = &net.IPAddr{IP: from.AsSlice()}
			socket, err = dialer.Dial("ip6:ipv6-icmp", to.String())
		}
		return err
	})
	return socket, err
}

func (p *probe) dontFragment(_, _ string, raw syscall.RawConn) error {
	var err error
	controlErr := raw.Control(func(fd uintptr) {
		if p.family == "v4" {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER,
				unix.IP_PMTUDISC_DO)
			return
		}
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER,
			unix.IPV6_PMTUDISC_DO)
		if err == nil {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1)
		}
	})
	return errors.Join(controlErr, err)
}

// knownMTU is what the sender's kernel now believes of the path. A new socket is
// asked: it looks the route up afresh.
func (p *probe) knownMTU() (int, error) {
	asking := *p
	asking.protocol = "udp"
	socket, err := asking.dial()
	if err != nil {
		return 0, err
	}
	defer socket.Close()
	raw, err := socket.(*net.UDPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	mtu := 0
	controlErr := raw.Control(func(fd uintptr) {
		if p.family == "v4" {
			mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU)
			return
		}
		mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU)
	})
	return mtu, errors.Join(controlErr, err)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// explain is an error for the results table, without Go's layers around it.
func explain(err error) string {
	var errno syscall.Errno
	var network net.Error
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "no answer"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}
