package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
)

// TestKeyPort: the port has the kernel's filter where that can be had, and opens without it where
// it cannot.
func TestKeyPort(t *testing.T) {
	p := openKeyPort(":0", loadSourceFilter)
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	listener, err := p.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dial := func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp",
			netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"),
				uint16(listener.Addr().(*net.TCPAddr).Port)).String())
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	filter := p.addressFilter()
	if os.Geteuid() == 0 && filter == nil {
		t.Fatalf("root has no filter: %v", p.unfiltered())
	}
	if err := p.unfiltered(); (filter == nil) != (err != nil) {
		t.Errorf("filter %v, and what is told is %v", filter, err)
	}
	if filter == nil {
		if err := dial(t.Context()); err != nil {
			t.Errorf("without a filter: %v", err)
		}
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for packets := uint64(0); packets == 0 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			packets, _, _ = filter.Refused()
		}
		cancel()
	})
	if err := dial(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody is allowed, and dialling ends with %v", err)
	}
	cancel()
	watching.Wait()
	if err := filter.Allow(map[netip.Addr]bool{netip.MustParseAddr("127.0.0.1"): true}); err != nil {
		t.Fatal(err)
	}
	if err := dial(t.Context()); err != nil {
		t.Errorf("allowed, and dialling ends with %v", err)
	}
}

// badFilter is one that no socket takes.
type badFilter struct{ sourceFilter }

func (badFilter) Attach(uintptr) error { return errUnfit }
func (badFilter) Close() error         { return nil }

var errUnfit = errors.New("the kernel does not do that")

// TestKeyPortUnfiltered: where the program cannot be loaded or attached, the port opens all the
// same, and that is told.
func TestKeyPortUnfiltered(t *testing.T) {
	t.Run("not loaded", func(t *testing.T) {
		p := openKeyPort("127.0.0.1:0", func() (sourceFilter, error) { return nil, errUnfit })
		if p.addressFilter() != nil {
			t.Error("there is a filter")
		}
		opensUnfiltered(t, p)
	})
	t.Run("not attached", func(t *testing.T) {
		opensUnfiltered(t,
			openKeyPort("127.0.0.1:0", func() (sourceFilter, error) { return badFilter{}, nil }))
	})
}

func opensUnfiltered(t *testing.T, p *keyPort) {
	t.Helper()
	listener, err := p.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := p.unfiltered(); !errors.Is(err, errUnfit) {
		t.Errorf("told is %v", err)
	}
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if err := p.close(); err != nil {
		t.Error(err)
	}
}
