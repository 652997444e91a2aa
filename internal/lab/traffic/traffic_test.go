package traffic

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// namespace makes a network namespace with its loopback up.
func namespace(t *testing.T) string {
	t.Helper()
	path := nettest.New(t, "traffic")
	setLoopback(t, path, netlink.LinkSetUp)
	return path
}

func setLoopback(t *testing.T, path string, set func(netlink.Link) error) {
	t.Helper()
	err := netns.Do(path, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return set(lo)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// packetOf makes a stream's packet as the sender does.
func packetOf(s *UDPStream, seq uint64) []byte {
	b := make([]byte, s.size)
	binary.BigEndian.PutUint32(b, udpMagic)
	binary.BigEndian.PutUint64(b[8:], s.id)
	binary.BigEndian.PutUint64(b[16:], seq)
	binary.BigEndian.PutUint32(b[4:], crc32.ChecksumIEEE(b[8:]))
	return b
}

func TestUDPCounting(t *testing.T) {
	s := &UDPStream{id: 7, size: 64, report: UDPReport{Sent: 10}}
	damaged, foreign, early := packetOf(s, 3), packetOf(&UDPStream{id: 8, size: 64}, 3), packetOf(s,
		10)
	damaged[40] ^= 1
	for _, seq := range []uint64{0, 1, 3, 2, 3, 9} {
		s.count(packetOf(s, seq), time.Now())
	}
	for _, b := range [][]byte{damaged, foreign, early, nil, damaged[:20]} {
		s.count(b, time.Now())
	}
	got := s.Report()
	got.MaxGap = 0
	want := UDPReport{Sent: 10, Received: 5, Lost: 5, Reordered: 1, Duplicates: 1, Corrupt: 5}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestTCPPattern(t *testing.T) {
	s := &TCPStream{last: time.Now()}
	at := 0
	if !s.take(pattern[:100], &at) || !s.take(pattern[100:], &at) || !s.take(pattern[:5], &at) {
		t.Fatalf("right bytes are refused: %+v", s.report)
	}
	if s.report.Received != patternSize+5 {
		t.Errorf("received %d", s.report.Received)
	}
	if s.take(pattern[6:20], &at) || !s.report.Corrupt {
		t.Errorf("shifted bytes pass: %+v", s.report)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	ctx, dst := context.Background(), netip.AddrPortFrom(loopback, 0)
	for _, o := range []UDPOptions{{Dst: dst, PPS: -1}, {Dst: dst, PPS: 2_000_000},
		{Dst: dst, Size: 8}, {Dst: dst, Size: 70000}} {
		if s, err := StartUDP(ctx, o); err == nil {
			s.Stop()
			t.Errorf("%+v accepted", o)
		}
	}
	if s, err := StartTCP(ctx, TCPOptions{Dst: dst, BytesPerSecond: -1}); err == nil {
		s.Stop()
		t.Error("a negative rate accepted")
	}
	for _, o := range []PingOptions{{}, {Dst: loopback, Size: 70000},
		{Dst: loopback, Src: netip.IPv6Loopback()}} {
		if _, err := Ping(ctx, "", o); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
}

func TestUDPLossIsSeen(t *testing.T) {
	path := namespace(t)
	s, err := StartUDP(t.Context(),
		UDPOptions{From: path, To: path, Dst: netip.AddrPortFrom(loopback, 0), PPS: 2000})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.Report().Received > 100 })
	// Loopback's own addresses go on working while it is down, so the receiver's are taken away.
	setLoopback(t, path,
		func(lo netlink.Link) error { return netlink.AddrDel(lo, loopbackAddr(t)) })
	waitFor(t, func() bool { r := s.Report(); return r.SendErrors > 0 || r.Lost > 100 })
	setLoopback(t, path,
		func(lo netlink.Link) error { return netlink.AddrAdd(lo, loopbackAddr(t)) })
	before := s.Report().Received
	waitFor(t, func() bool { return s.Report().Received > before+100 })
	if r := s.Stop(); r.Lost+r.SendErrors == 0 || r.Duplicates+r.Corrupt != 0 {
		t.Errorf("%s", r)
	}
	if again := s.Stop(); again != s.Report() {
		t.Errorf("a second Stop says %s", again)
	}
}

func loopbackAddr(t *testing.T) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr("127.0.0.1/8")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// waitFor waits for something that will come; only a hang makes it fail.
func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for range 3000 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it did not come within 30 s")
}

func TestTCPResetIsSeen(t *testing.T) {
	path := namespace(t)
	s, err := StartTCP(t.Context(),
		TCPOptions{From: path, To: path, Dst: netip.AddrPortFrom(loopback, 0),
			BytesPerSecond: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return s.Report().Received > 0 })
	_ = s.in.SetLinger(0)
	s.in.Close() // what a reset on the way does
	waitFor(t, func() bool { return s.Report().Resets == 1 })
	if r := s.Stop(); r.Error == "" || r.Corrupt {
		t.Errorf("%s", r)
	}
}

func TestEchoAndPing(t *testing.T) {
	path := namespace(t)
	echo, err := StartEcho(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, addr := range []netip.Addr{loopback, netip.IPv6Loopback()} {
		dst := netip.AddrPortFrom(addr, echo.Port())
		for _, size := range []int{0, 1, 100_000} {
			if _, err := EchoTCP(ctx, path, netip.Addr{}, dst, size); err != nil {
				t.Errorf("TCP %d bytes: %v", size, err)
			}
		}
		if _, err := EchoUDP(ctx, path, addr, dst, 1000); err != nil {
			t.Error(err)
		}
		for _, size := range []int{-1, 0, 1, 3000} {
			r, err := Ping(ctx, path,
				PingOptions{Dst: addr, Src: addr, Size: size, Count: 2, Interval: time.Millisecond,
					DF: true})
			if err != nil || !r.OK() || len(r.RTT) != 2 {
				t.Errorf("ping %s with %d bytes: %+v, %v", addr, size, r, err)
			}
		}
	}
	if err := echo.Close(); err != nil {
		t.Error(err)
	}
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := EchoTCP(short, path, netip.Addr{}, netip.AddrPortFrom(loopback, echo.Port()),
		1); err == nil {
		t.Error("a closed server answers")
	}
}
