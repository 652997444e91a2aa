package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestKeyPort: the port has the kernel's filter where that can be had, and opens without it where it cannot.
func TestKeyPort(t *testing.T) {
	var logged bytes.Buffer
	p := openKeyPort(":0", slog.New(slog.NewTextHandler(&logged, nil)))
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
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(listener.Addr().(*net.TCPAddr).Port)).String())
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	filter := p.addressFilter()
	if os.Geteuid() == 0 && filter == nil {
		t.Fatalf("root has no filter: %s", &logged)
	}
	if said := strings.Count(logged.String(), "turns them away itself"); (filter == nil) != (said == 1) {
		t.Errorf("filter %v, and the log says\n%s", filter, &logged)
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

// TestKeyPortUnfiltered: where the program cannot be loaded, the port opens all the same.
func TestKeyPortUnfiltered(t *testing.T) {
	p := &keyPort{address: "127.0.0.1:0", log: slog.New(slog.DiscardHandler)}
	listener, err := p.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if p.addressFilter() != nil {
		t.Error("there is a filter")
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
