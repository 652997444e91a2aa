package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

const (
	// patternSize is prime, so that no block size of the path hides a shifted stream.
	patternSize = 65521
	tcpChunk    = 32 << 10
	dialTimeout = 30 * time.Second
	// drainTimeout is how long a stopped stream's receiver may take for the rest.
	drainTimeout = 30 * time.Second
)

// pattern is what every TCP stream carries, over and over.
var pattern = func() []byte {
	r := rand.New(rand.NewPCG(4551, 9551))
	b := make([]byte, patternSize)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()

// TCPOptions describe a TCP stream.
type TCPOptions struct {
	// From and To are paths of network namespaces.
	From, To string
	// Src is bound by the sender when valid; Dst is where the receiver listens. Port 0: any free
	// one.
	Src netip.Addr
	Dst netip.AddrPort
	// BytesPerSecond limits the stream; 0 is as fast as it goes.
	BytesPerSecond int
}

// TCPReport is what a TCP stream saw. All is well when Received equals Sent after
// Stop, Corrupt is false and Resets is 0.
type TCPReport struct {
	Sent     uint64        `json:"sent"`     // bytes given to the sender's kernel
	Received uint64        `json:"received"` // bytes read and found right
	Corrupt  bool          `json:"corrupt"`  // the bytes were not those sent
	Resets   uint64        `json:"resets"`   // 1 when the connection broke
	MaxStall time.Duration `json:"maxStall"` // longest time without a byte received
	Error    string        `json:"error,omitempty"`
}

// String is a line for people.
func (r TCPReport) String() string {
	s := fmt.Sprintf("sent %d received %d bytes, resets %d, corrupt %t, longest stall %s", r.Sent,
		r.Received, r.Resets, r.Corrupt, r.MaxStall.Round(time.Millisecond))
	if r.Error != "" {
		s += ": " + r.Error
	}
	return s
}

// TCPStream is a running stream.
type TCPStream struct {
	out, in *net.TCPConn
	cancel  context.CancelFunc
	sender  chan struct{}
	reader  chan struct{}

	mu     sync.Mutex
	report TCPReport
	last   time.Time // of the last byte received
	ended  bool      // the sender has stopped on purpose: silence is no stall any more
}

// StartTCP connects and starts a stream; it runs until Stop or until ctx ends.
func StartTCP(ctx context.Context, o TCPOptions) (*TCPStream, error) {
	if o.BytesPerSecond < 0 {
		return nil, fmt.Errorf("TCP stream: BytesPerSecond is %d: use 0 for no limit or a positive number", o.BytesPerSecond)
	}
	listener, err := listenTCP(o.To, o.Dst)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	dialCtx, cancelDial := context.WithTimeout(ctx, dialTimeout)
	defer cancelDial()
	dst := netip.AddrPortFrom(o.Dst.Addr(), uint16(listener.Addr().(*net.TCPAddr).Port))
	out, err := dialTCP(dialCtx, o.From, o.Src, dst)
	if err != nil {
		return nil, err
	}
	_ = listener.SetDeadline(time.Now().Add(dialTimeout))
	in, err := listener.AcceptTCP()
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("accept TCP stream: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &TCPStream{out: out, in: in, cancel: cancel, sender: make(chan struct{}),
		reader: make(chan struct{}), last: time.Now()}
	go s.receive()
	go s.send(ctx, o.BytesPerSecond)
	// A write that hangs on a dead path must not keep Stop waiting.
	context.AfterFunc(ctx, func() { _ = out.SetWriteDeadline(time.Now()) })
	return s, nil
}

func (s *TCPStream) send(ctx context.Context, rate int) {
	defer close(s.sender)
	begin, sent := time.Now(), uint64(0)
	chunk := tcpChunk
	if rate > 0 {
		chunk = min(chunk, max(rate/100, 1))
	}
	for ctx.Err() == nil {
		at := int(sent % patternSize)
		n, err := s.out.Write(pattern[at:min(at+chunk, patternSize)])
		sent += uint64(n)
		s.mu.Lock()
		s.report.Sent = sent
		s.mu.Unlock()
		if err != nil {
			s.broken("send", err)
			break
		}
		if ahead := time.Duration(float64(sent)/float64(max(rate,
			1))*float64(time.Second)) - time.Since(begin); rate > 0 && ahead > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(ahead):
			}
		}
	}
	s.mu.Lock()
	s.ended = true
	s.stall(time.Now())
	s.mu.Unlock()
	_ = s.out.CloseWrite()
}

// broken records the end of a connection that nobody asked for.
func (s *TCPStream) broken(what string, err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Resets = 1
	if s.report.Error == "" {
		s.report.Error = what + ": " + err.Error()
	}
}

func (s *TCPStream) receive() {
	defer close(s.reader)
	buf := make([]byte, tcpChunk)
	for at := 0; ; {
		n, err := s.in.Read(buf)
		if !s.take(buf[:n], &at) {
			s.in.Close() // the sender finds out by its next write
			return
		}
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			s.broken("receive", err)
			return
		}
	}
}

// take compares what came with the pattern at the position and counts it.
func (s *TCPStream) take(got []byte, at *int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(got) > 0 {
		s.stall(time.Now())
	}
	for len(got) > 0 {
		n := min(len(got), patternSize-*at)
		if !bytes.Equal(got[:n], pattern[*at:*at+n]) {
			s.report.Corrupt = true
			s.report.Error = fmt.Sprintf("wrong bytes after %d right ones", s.report.Received)
			return false
		}
		s.report.Received += uint64(n)
		*at = (*at + n) % patternSize
		got = got[n:]
	}
	return true
}

// stall notes the time since the last byte; the caller holds the lock.
func (s *TCPStream) stall(now time.Time) {
	if !s.ended || s.report.Received < s.report.Sent {
		s.report.MaxStall = max(s.report.MaxStall, now.Sub(s.last))
	}
	s.last = now
}

// Report is what was seen so far; bytes on their way are sent and not yet received.
func (s *TCPStream) Report() TCPReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

// Stop ends the sender, waits until the receiver has read everything and reports. It may
// be called again.
func (s *TCPStream) Stop() TCPReport {
	s.cancel()
	<-s.sender
	_ = s.in.SetReadDeadline(time.Now().Add(drainTimeout))
	<-s.reader
	s.out.Close()
	s.in.Close()
	return s.Report()
}
