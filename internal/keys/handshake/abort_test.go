package handshake

import (
	"errors"
	"net"
	"testing"
	"time"
)

// TestAbort ends what is served, at every stage, and lets the same peer in anew at once: only the
// abort can, since no time-out of these comes before the test's end.
func TestAbort(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, func(c *Config) { c.Timeout = time.Hour })
	y.listen()
	conn, err := x.dialTLS(y, nil)
	if err != nil {
		t.Fatal(err)
	}
	greets, err := net.Dial("tcp", y.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer greets.Close()
	if _, err := greets.Write([]byte{22}); err != nil {
		t.Fatal(err)
	}
	stages := func() (greeting, known int) {
		y.server.limit.mu.Lock()
		defer y.server.limit.mu.Unlock()
		return len(y.server.limit.greeting), len(y.server.limit.known)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if greeting, known := stages(); greeting == 1 && known == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("they are not served")
		}
	}
	y.server.Abort()
	for _, c := range []net.Conn{conn, greets} {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		var late net.Error
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.As(err, &late) &&
			late.Timeout() {
			t.Errorf("it is served still: %v", err)
		}
	}
	b.exchange(x, y, 1)
	b.settled(x, y, 1)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		aborted := 0
		for _, err := range y.errors() {
			if errors.Is(err, ErrAborted) {
				aborted++
			}
		}
		if aborted == 2 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("served %v: want 2 that were given up", y.errors())
		}
	}
}
