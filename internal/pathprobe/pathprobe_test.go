package pathprobe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// serve runs a prober until the test ends.
func serve(t *testing.T, opt Options) *Prober {
	t.Helper()
	if opt.Wait == 0 {
		// Long, for a machine that is busy: each size that does not fit takes all of it.
		opt.Tries, opt.Wait = 3, 400*time.Millisecond
	}
	p, err := Listen(opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return p
}

// wires are two nodes, a and b, on a wire of MTU 1500, with a router between them whose far
// side has a smaller MTU if small is set.
func wires(t *testing.T, small int) (a, b string) {
	t.Helper()
	a, router, b := nettest.New(t, "wiring-a"), nettest.New(t, "wiring-r"), nettest.New(t,
		"wiring-b")
	nettest.Wire(t,
		nettest.End{NetNS: a, Name: "pa1", MTU: 1500, Addrs: []string{"10.9.1.1/24"}},
		nettest.End{NetNS: router, Name: "pb1", MTU: 1500, Addrs: []string{"10.9.1.254/24"}})
	nettest.Wire(t,
		nettest.End{NetNS: router, Name: "pa2", MTU: small, Addrs: []string{"10.9.2.254/24"}},
		nettest.End{NetNS: b, Name: "pb2", MTU: small, Addrs: []string{"10.9.2.1/24"}})
	nettest.Do(t, a, func() error { return nettest.DefaultRoutes("10.9.1.254") })
	nettest.Do(t, b, func() error { return nettest.DefaultRoutes("10.9.2.254") })
	nettest.Do(t, router, nettest.Forward)
	return a, b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPath(t *testing.T) {
	for _, tt := range []struct{ small, want int }{{1500, 1500}, {1400, 1400}} {
		t.Run(fmt.Sprint(tt.small), func(t *testing.T) {
			a, b := wires(t, tt.small)
			var near *Prober
			must(t, netns.Do(a, func() error { near = serve(t, Options{Port: 4500}); return nil }))
			far := netip.MustParseAddr("10.9.2.1")
			if _, err := near.Fits(t.Context(), far, 1500); !errors.Is(err, ErrNoAnswer) {
				t.Errorf("nobody is there: %v", err)
			}
			must(t, netns.Do(b, func() error {
				serve(t,
					Options{Port: 4500,
						Known: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.9.1.1") }})
				return nil
			}))
			if got, err := near.Fits(t.Context(), far, 1500); got != tt.want || err != nil {
				t.Errorf("fits %d, %v, want %d", got, err, tt.want)
			}
		})
	}
}

// TestEndGoesAway has an end that goes away in the middle, as an agent that is killed does, or that
// is away for a moment, as one that is restarted: that is no narrow path.
func TestEndGoesAway(t *testing.T) {
	const narrow = 1400
	for name, row := range map[string]struct {
		// answers says whether the end answers a probe of a size, with how many of that size and of
		// all came before.
		answers func(size, same, all int) bool
		want    int // 0: no answer
	}{
		"a path of 1500":             {func(int, int, int) bool { return true }, 1500},
		"a narrow path":              {func(size, _, _ int) bool { return size <= narrow }, narrow},
		"goes away before the first": {func(int, int, int) bool { return false }, 0},
		"goes away after the first":  {func(_, _, all int) bool { return all == 0 }, 0},
		"goes away in the middle":    {func(size, _, all int) bool { return size <= narrow && all < 6 }, 0},
		// 4 is of a size that passes. The one after it tells that nobody is there.
		"is away for a moment, a narrow path": {func(size, _, all int) bool { return size <= narrow && all != 4 && all != 5 }, 0},
		"is away for the largest":             {func(size, same, _ int) bool { return size < 1500 || same > 0 }, 1500},
		"goes away before the last, a narrow path": {func() func(int, int, int) bool {
			gone := false
			return func(size, same, _ int) bool {
				gone = gone || size == 1500 && same > 0
				return size <= narrow && !gone
			}
		}(), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := wires(t, 1500)
			var near *Prober
			must(t, netns.Do(a, func() error {
				near = serve(t, Options{Port: 4500, Tries: 1, Wait: time.Second})
				return nil
			}))
			var far *net.UDPConn
			must(t, netns.Do(b, func() (err error) {
				far, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 4500})
				return err
			}))
			defer far.Close()
			go scripted(far, row.answers)
			got, err := near.Fits(t.Context(), netip.MustParseAddr("10.9.2.1"), 1500)
			if got != row.want || (row.want == 0) != errors.Is(err, ErrNoAnswer) ||
				(row.want != 0) != (err == nil) {
				t.Errorf("fits %d, %v, want %d", got, err, row.want)
			}
		})
	}
}

// scripted answers probes for which answers says so, until its socket is closed.
func scripted(conn *net.UDPConn, answers func(size, same, all int) bool) {
	data := make([]byte, MaxPacket)
	same, all := map[int]int{}, 0
	for {
		n, from, err := conn.ReadFromUDPAddrPort(data)
		if err != nil {
			return
		}
		size := n + headersIPv4
		if answers(size, same[size], all) {
			data[kindAt] = kindAnswer
			_, _ = conn.WriteToUDPAddrPort(data[:n], from)
		}
		same[size]++
		all++
	}
}

// freePort is one that nobody has now.
func freePort(t *testing.T) int {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{})
	must(t, err)
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).Port
}

func TestLoopback(t *testing.T) {
	port := freePort(t)
	p := serve(t, Options{Port: port})
	for _, addr := range []string{"127.0.0.1", "::1"} {
		ip := netip.MustParseAddr(addr)
		if p.conns[ip.Is4()] == nil {
			continue
		}
		if got, err := p.Fits(t.Context(), ip, 9000); got != 9000 || err != nil {
			t.Errorf("%s: %d %v", addr, got, err)
		}
	}
	_, err := Listen(Options{Port: port})
	if err == nil || !strings.Contains(err.Error(), "encryption.port") {
		t.Errorf("taken twice: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Fits(ctx, netip.MustParseAddr("192.0.2.1"), 1500); err == nil {
		t.Error("went on after the end")
	}
}

// TestOwnInterfaceIsSmaller asks for more than the interface takes: what it refuses needs no
// waiting.
func TestOwnInterfaceIsSmaller(t *testing.T) {
	a, b := wires(t, 1500)
	var near *Prober
	must(t, netns.Do(a, func() error { near = serve(t, Options{Port: 4500}); return nil }))
	must(t, netns.Do(b, func() error { serve(t, Options{Port: 4500}); return nil }))
	if got, err := near.Fits(t.Context(), netip.MustParseAddr("10.9.2.1"), 9000); got != 1500 ||
		err != nil {
		t.Errorf("fits %d, %v", got, err)
	}
}

func TestNoAnswerToOthers(t *testing.T) {
	p := serve(t,
		Options{Port: freePort(t), Known: func(netip.Addr) bool { return false }, Tries: 1,
			Wait: 100 * time.Millisecond})
	if _, err := p.Fits(t.Context(), netip.MustParseAddr("127.0.0.1"), 1500); !errors.Is(err,
		ErrNoAnswer) {
		t.Errorf("answered: %v", err)
	}
}

func TestParse(t *testing.T) {
	good := probe(7, 100)
	if kind, number, ok := parse(good); kind != kindAsk || number != 7 || !ok {
		t.Errorf("%d %d %v", kind, number, ok)
	}
	esp := append([]byte(nil), good...)
	esp[3] = 1
	for name, data := range map[string][]byte{"nothing": nil, "keepalive": {0xff},
		"short": good[:probeSize-1], "ESP": esp, "IKE": make([]byte, 100)} {
		if _, _, ok := parse(data); ok {
			t.Errorf("%s is taken for a probe", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(probe(1, probeSize))
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) { parse(data) })
}
