package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// The layout of a stream's payload: magic, checksum of all that follows, stream,
// sequence number; then filling.
const (
	udpMagic   = 0x57454654
	udpHeader  = 24
	minUDPSize = 32
	maxUDPSize = 65000
	// maxBurst bounds what the sender makes up for after it had to wait for a CPU:
	// a veth ring holds 256 packets, and losing there would say nothing about the datapath.
	maxBurst = 32
	// settle is how long a stopped stream waits without a packet before it calls the rest lost.
	settle = 3 * time.Second
)

// UDPOptions describe a UDP stream.
type UDPOptions struct {
	// From and To are paths of network namespaces.
	From, To string
	// Src is bound by the sender when valid; Dst is where the receiver listens. Port 0: any free
	// one.
	Src netip.Addr
	Dst netip.AddrPort
	// PPS is packets per second, default 1000; Size the UDP payload in bytes, default 64, at least
	// 32.
	PPS, Size int
}

// UDPReport is what a UDP stream saw. Nothing was lost when Lost and SendErrors are 0.
type UDPReport struct {
	Sent       uint64        `json:"sent"`
	SendErrors uint64        `json:"sendErrors"` // packets that the kernel refused to send, not in Sent
	Received   uint64        `json:"received"`   // without duplicates
	Lost       uint64        `json:"lost"`
	Reordered  uint64        `json:"reordered"`
	Duplicates uint64        `json:"duplicates"`
	Corrupt    uint64        `json:"corrupt"`             // datagrams that were not ours or not as sent
	MaxGap     time.Duration `json:"maxGap"`              // longest time between two packets received
	SendError  string        `json:"sendError,omitempty"` // the first one
}

// String is a line for people.
func (r UDPReport) String() string {
	return fmt.Sprintf("sent %d received %d lost %d reordered %d duplicates %d corrupt %d send errors %d, longest gap %s",
		r.Sent, r.Received, r.Lost, r.Reordered, r.Duplicates, r.Corrupt, r.SendErrors,
		r.MaxGap.Round(time.Millisecond))
}

// UDPStream is a running stream.
type UDPStream struct {
	out, in *net.UDPConn
	id      uint64
	size    int
	cancel  context.CancelFunc
	sender  chan struct{} // closed when the sender has ended
	reader  chan struct{} // closed when the receiver has ended

	mu      sync.Mutex
	report  UDPReport
	seen    []uint64 // a bit per sequence number
	highest uint64   // the highest sequence number seen, plus one
	last    time.Time
}

// StartUDP starts a stream; it runs until Stop or until ctx ends.
func StartUDP(ctx context.Context, o UDPOptions) (*UDPStream, error) {
	if o.PPS == 0 {
		o.PPS = 1000
	}
	if o.Size == 0 {
		o.Size = 64
	}
	if o.PPS < 1 || o.PPS > 1_000_000 {
		return nil, fmt.Errorf("UDP stream: PPS is %d: use 1 to 1000000", o.PPS)
	}
	if o.Size < minUDPSize || o.Size > maxUDPSize {
		return nil, fmt.Errorf("UDP stream: Size is %d: use %d to %d", o.Size, minUDPSize,
			maxUDPSize)
	}
	in, err := listenUDP(o.To, o.Dst)
	if err != nil {
		return nil, err
	}
	port := in.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	out, err := dialUDP(o.From, o.Src, netip.AddrPortFrom(o.Dst.Addr(), port))
	if err != nil {
		in.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &UDPStream{
		out: out, in: in, id: rand.Uint64(), size: o.Size, cancel: cancel,
		sender: make(chan struct{}), reader: make(chan struct{}),
	}
	go s.receive()
	go s.send(ctx, o.PPS)
	return s, nil
}

// send keeps to a timetable. What it misses by more than a burst it leaves out.
func (s *UDPStream) send(ctx context.Context, pps int) {
	defer close(s.sender)
	packet := make([]byte, s.size)
	for i := udpHeader; i < len(packet); i++ {
		packet[i] = byte(i)
	}
	begin, due, seq := time.Now(), uint64(0), uint64(0)
	interval := time.Second / time.Duration(pps)
	for ctx.Err() == nil {
		now := uint64(time.Since(begin).Seconds() * float64(pps))
		if now > due+maxBurst {
			due = now - maxBurst
		}
		for ; due < now && ctx.Err() == nil; due++ {
			if s.sendOne(packet, seq) {
				seq++
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(interval, 500*time.Microsecond)):
		}
	}
}

// sendOne sends a packet, again under the next turn's number when the kernel refused it.
func (s *UDPStream) sendOne(packet []byte, seq uint64) bool {
	binary.BigEndian.PutUint32(packet[0:], udpMagic)
	binary.BigEndian.PutUint64(packet[8:], s.id)
	binary.BigEndian.PutUint64(packet[16:], seq)
	binary.BigEndian.PutUint32(packet[4:], crc32.ChecksumIEEE(packet[8:]))
	// Counted before it is sent: the receiver may be quicker than this goroutine.
	s.mu.Lock()
	s.report.Sent++
	s.mu.Unlock()
	_, err := s.out.Write(packet)
	if err == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Sent--
	s.report.SendErrors++
	if s.report.SendError == "" {
		s.report.SendError = err.Error()
	}
	return false
}

func (s *UDPStream) receive() {
	defer close(s.reader)
	buf := make([]byte, maxUDPSize+1)
	for {
		n, err := s.in.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			continue // an ICMP error; the loss it tells of is counted anyway
		}
		s.count(buf[:n], time.Now())
	}
}

func (s *UDPStream) count(packet []byte, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seq, ok := s.sequence(packet)
	if !ok {
		s.report.Corrupt++
		return
	}
	if !s.last.IsZero() {
		s.report.MaxGap = max(s.report.MaxGap, now.Sub(s.last))
	}
	s.last = now
	word, bit := seq/64, uint64(1)<<(seq%64)
	for uint64(len(s.seen)) <= word {
		s.seen = append(s.seen, 0)
	}
	if s.seen[word]&bit != 0 {
		s.report.Duplicates++
		return
	}
	s.seen[word] |= bit
	s.report.Received++
	if seq+1 < s.highest {
		s.report.Reordered++
	}
	s.highest = max(s.highest, seq+1)
}

// sequence reads a packet's number if the packet is exactly one that we sent.
func (s *UDPStream) sequence(packet []byte) (uint64, bool) {
	if len(packet) != s.size || binary.BigEndian.Uint32(packet) != udpMagic ||
		binary.BigEndian.Uint32(packet[4:]) != crc32.ChecksumIEEE(packet[8:]) ||
		binary.BigEndian.Uint64(packet[8:]) != s.id {
		return 0, false
	}
	seq := binary.BigEndian.Uint64(packet[16:])
	return seq, seq < s.report.Sent
}

// Report is what was seen so far; Lost counts packets that are still on their way.
func (s *UDPStream) Report() UDPReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.report
	r.Lost = r.Sent - r.Received
	return r
}

// Stop ends the sender, waits for what is on its way and reports. It may be called again.
func (s *UDPStream) Stop() UDPReport {
	s.cancel()
	<-s.sender
	quiet := time.Now()
	for r := s.Report(); r.Lost > 0 && time.Since(quiet) < settle; {
		time.Sleep(10 * time.Millisecond)
		now := s.Report()
		if now.Received != r.Received {
			quiet = time.Now()
		}
		r = now
	}
	s.out.Close()
	s.in.Close()
	<-s.reader
	return s.Report()
}
