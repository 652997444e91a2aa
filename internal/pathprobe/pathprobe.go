// Package pathprobe finds out how large packets to another node may be. It holds the UDP
// port of ESP: datagrams with the non-ESP marker (RFC 3948, four zero bytes where ESP has
// its SPI) are probes, which the node at the other end sends back as they came, with the
// same size and may not be cut into fragments on the way.
//
// ICMP errors are not relied on: what counts is that a packet of a size came back.
package pathprobe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A probe: marker (4 zero bytes), magic, kind, number, zeros up to its size.
const (
	magic     = "weft path"
	kindAt    = 4 + len(magic)
	numberAt  = kindAt + 1
	probeSize = numberAt + 8

	kindAsk    = 1
	kindAnswer = 2
)

// Headers before a probe's first byte.
const (
	headersIPv4 = 20 + 8
	headersIPv6 = 40 + 8
)

// What every path must carry (RFC 791, RFC 8200): where a search ends.
const (
	minIPv4 = 576
	minIPv6 = 1280
)

// MaxPacket is the largest packet that is probed for.
const MaxPacket = 65535

// ErrNoAnswer means that not even a small packet came back: whether a large one would is not known.
var ErrNoAnswer = errors.New("no answer")

// Options are what a Prober needs.
type Options struct {
	// Port is that of ESP in UDP, here and at the peers.
	Port int
	// Known says whether an address is a node's: others get no answer. Nil: everybody gets one.
	Known func(netip.Addr) bool
	// Tries is how often each size is sent before it counts as too large, Wait how long
	// an answer may take. Default: 3 times 300 ms.
	Tries int
	Wait  time.Duration
	Log   *slog.Logger
}

// Prober holds the port, answers other nodes' probes and sends its own.
type Prober struct {
	opt   Options
	conns map[bool]*net.UDPConn // by: is IPv4

	mu      sync.Mutex
	waiting map[uint64]chan struct{}
}

// Listen takes the port, for IPv4 and, where the kernel has it, IPv6. Probes are answered
// once Serve runs.
func Listen(opt Options) (*Prober, error) {
	if opt.Tries == 0 {
		opt.Tries = 3
	}
	if opt.Wait == 0 {
		opt.Wait = 300 * time.Millisecond
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	p := &Prober{opt: opt, conns: map[bool]*net.UDPConn{}, waiting: map[uint64]chan struct{}{}}
	for _, ipv4 := range []bool{true, false} {
		conn, err := listen(opt.Port, ipv4)
		if err != nil &&
			(ipv4 || !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EADDRNOTAVAIL)) {
			p.Close()
			return nil, fmt.Errorf("take UDP port %d: %w: end what uses it, or set another encryption.port on every node", opt.Port, err)
		}
		if conn != nil {
			p.conns[ipv4] = conn
		}
	}
	return p, nil
}

func listen(port int, ipv4 bool) (*net.UDPConn, error) {
	network := "udp6"
	if ipv4 {
		network = "udp4"
	}
	conn, err := net.ListenUDP(network, &net.UDPAddr{Port: port})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var errSet error
		err = raw.Control(func(fd uintptr) { errSet = neverFragment(int(fd), ipv4) })
		err = errors.Join(err, errSet)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("forbid fragments: %w", err)
	}
	return conn, nil
}

// neverFragment sets DF and has the kernel send what the interface takes, whatever it
// believes of the path: that belief is what a probe is to find wrong.
func neverFragment(fd int, ipv4 bool) error {
	if ipv4 {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
}

// Close gives the port up.
func (p *Prober) Close() error {
	var err error
	for _, conn := range p.conns {
		err = errors.Join(err, conn.Close())
	}
	return err
}

// Serve answers probes until ctx ends, and gives the port up then.
func (p *Prober) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for ipv4, conn := range p.conns {
		at := 0
		if ipv4 {
			at = 1
		}
		wg.Go(func() { errs[at] = p.read(ctx, conn) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errs...)
}

func (p *Prober) read(ctx context.Context, conn *net.UDPConn) error {
	buffer := make([]byte, MaxPacket)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read probes: %w", err)
		case err != nil:
			// An ICMP error of an earlier send is reported by the next call.
			continue
		}
		p.got(conn, buffer[:n], from)
	}
}

// got takes one datagram. What is no probe (ESP that the datapath left to the stack, for
// instance) is dropped.
func (p *Prober) got(conn *net.UDPConn, data []byte, from netip.AddrPort) {
	kind, number, ok := parse(data)
	if !ok {
		return
	}
	switch kind {
	case kindAsk:
		if known := p.opt.Known; known != nil && !known(from.Addr().Unmap()) {
			return
		}
		data[kindAt] = kindAnswer
		if _, err := conn.WriteToUDPAddrPort(data, from); err != nil {
			p.opt.Log.Debug("probe not answered", "from", from, "bytes", len(data), "err", err)
		}
	case kindAnswer:
		p.mu.Lock()
		waiting := p.waiting[number]
		delete(p.waiting, number)
		p.mu.Unlock()
		if waiting != nil {
			close(waiting)
		}
	}
}

// probe writes a datagram of that many bytes.
func probe(number uint64, size int) []byte {
	data := make([]byte, size)
	copy(data[4:], magic)
	data[kindAt] = kindAsk
	binary.BigEndian.PutUint64(data[numberAt:], number)
	return data
}

func parse(data []byte) (kind byte, number uint64, ok bool) {
	if len(data) < probeSize || binary.BigEndian.Uint32(data) != 0 ||
		string(data[4:kindAt]) != magic {
		return 0, 0, false
	}
	return data[kindAt], binary.BigEndian.Uint64(data[numberAt:]), true
}

// newNumber cannot be guessed by who does not see the probe.
func newNumber() uint64 {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	return binary.BigEndian.Uint64(raw[:])
}
