package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"weft.dev/weft/internal/netns"
)

const (
	// flowsAtOnce is how many flows have a message on its way at one time: few for a veth's ring of
	// 256.
	flowsAtOnce = 32
	// flowsSize is the size of a message: turn and flow.
	flowsSize = 16
)

// FlowsOptions describe flows that are held for long: sockets of one pod, connected to an echo
// server of another.
type FlowsOptions struct {
	From string // path of the network namespace
	Src  netip.Addr
	Dst  netip.AddrPort
	// UDP and TCP are how many flows there are of each. The i-th has the source port FirstPort+i,
	// so that the same flows can be opened again.
	UDP, TCP  int
	FirstPort uint16
}

// Flows are open flows. Only one goroutine may use them.
type Flows struct {
	udp      []*net.UDPConn
	tcp      []*net.TCPConn
	sent     []uint64 // datagrams, by UDP flow
	received []uint64
	turn     uint64
}

// OpenFlows opens the flows; nothing is sent yet but TCP's handshakes.
func OpenFlows(ctx context.Context, o FlowsOptions) (*Flows, error) {
	f := &Flows{sent: make([]uint64, o.UDP), received: make([]uint64, o.UDP)}
	err := netns.Do(o.From, func() error {
		for i := range o.UDP + o.TCP {
			if err := f.open(ctx, o, i); err != nil {
				return fmt.Errorf("open flow %d of %d to %s: %w", i, o.UDP+o.TCP, o.Dst, err)
			}
		}
		return nil
	})
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Flows) open(ctx context.Context, o FlowsOptions, i int) error {
	src := netip.AddrPortFrom(o.Src, o.FirstPort+uint16(i))
	if i < o.UDP {
		conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(src),
			net.UDPAddrFromAddrPort(o.Dst))
		if err == nil {
			f.udp = append(f.udp, conn)
		}
		return err
	}
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(src), Timeout: dialTimeout}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", o.Dst.String())
	if err != nil {
		return err
	}
	f.tcp = append(f.tcp, conn.(*net.TCPConn))
	// Closed with a reset: the port is free for the next to come, at once.
	return conn.(*net.TCPConn).SetLinger(0)
}

// Close closes every flow.
func (f *Flows) Close() {
	for _, conn := range f.udp {
		conn.Close()
	}
	for _, conn := range f.tcp {
		conn.Close()
	}
}

// Exchange sends a message over every flow and waits for its echo. A datagram that gets no answer
// for udpRetry is sent again, until ctx ends; a TCP connection that breaks is an error.
func (f *Flows) Exchange(ctx context.Context) error {
	f.turn++
	for at := 0; at < len(f.udp); at += flowsAtOnce {
		if err := f.exchangeUDP(ctx, at, min(at+flowsAtOnce, len(f.udp))); err != nil {
			return err
		}
	}
	for at := 0; at < len(f.tcp); at += flowsAtOnce {
		if err := f.exchangeTCP(ctx, at, min(at+flowsAtOnce, len(f.tcp))); err != nil {
			return err
		}
	}
	return nil
}

func (f *Flows) message(i int) []byte {
	b := binary.BigEndian.AppendUint64(nil, f.turn)
	return binary.BigEndian.AppendUint64(b, uint64(i))
}

func (f *Flows) exchangeUDP(ctx context.Context, from, to int) error {
	waiting := to - from
	answered := make([]bool, waiting)
	for waiting > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("%d of UDP flows %d to %d: no answer: %w", waiting, from, to-1,
				ctx.Err())
		}
		for i := from; i < to; i++ {
			if answered[i-from] {
				continue
			}
			if _, err := f.udp[i].Write(f.message(i)); err != nil {
				return fmt.Errorf("UDP flow %d: %w", i, err)
			}
			f.sent[i]++
		}
		until := time.Now().Add(udpRetry)
		for i := from; i < to; i++ {
			if answered[i-from] {
				continue
			}
			ok, err := f.answer(i, until)
			if err != nil {
				return err
			}
			if ok {
				answered[i-from] = true
				waiting--
			}
		}
	}
	return nil
}

// answer reads datagrams of a flow until this turn's echo came or it is time to send again.
func (f *Flows) answer(i int, until time.Time) (bool, error) {
	var got [flowsSize + 1]byte
	if err := f.udp[i].SetReadDeadline(until); err != nil {
		return false, err
	}
	for {
		n, err := f.udp[i].Read(got[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("UDP flow %d: %w", i, err)
		case n != flowsSize || binary.BigEndian.Uint64(got[8:]) != uint64(i):
			return false, fmt.Errorf("UDP flow %d: got %x, not what was sent", i, got[:n])
		}
		f.received[i]++
		if binary.BigEndian.Uint64(got[:]) == f.turn {
			return true, nil
		}
	}
}

func (f *Flows) exchangeTCP(ctx context.Context, from, to int) error {
	deadline, _ := ctx.Deadline()
	for i := from; i < to; i++ {
		if err := f.tcp[i].SetDeadline(deadline); err != nil {
			return err
		}
		if _, err := f.tcp[i].Write(f.message(i)); err != nil {
			return fmt.Errorf("TCP flow %d: %w", i, err)
		}
	}
	var got [flowsSize]byte
	for i := from; i < to; i++ {
		if _, err := io.ReadFull(f.tcp[i], got[:]); err != nil {
			return fmt.Errorf("TCP flow %d: %w", i, err)
		}
		if string(got[:]) != string(f.message(i)) {
			return fmt.Errorf("TCP flow %d: got %x, not what was sent", i, got)
		}
	}
	return nil
}

// Lost waits for late answers and says how many datagrams had none, of how many.
func (f *Flows) Lost() (lost, sent uint64) {
	var got [flowsSize]byte
	for i, conn := range f.udp {
		_ = conn.SetReadDeadline(time.Now().Add(settle))
		for f.received[i] < f.sent[i] {
			if _, err := conn.Read(got[:]); err != nil {
				break
			}
			f.received[i]++
		}
		lost += f.sent[i] - min(f.sent[i], f.received[i])
		sent += f.sent[i]
	}
	return lost, sent
}
