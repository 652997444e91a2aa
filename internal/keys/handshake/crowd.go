package handshake

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// strangerTime is how long a connection may keep its place without a certificate when others wait for one.
const strangerTime = time.Second

// crowd bounds how many connections are served at once. When all places are taken, the connection that has waited longest
// without showing a certificate gives way, so that connections that say nothing do not keep peers out.
type crowd struct {
	places chan struct{}

	mu        sync.Mutex
	strangers []*guest // oldest first
}

// guest is one connection in the crowd.
type guest struct {
	crowd *crowd
	conn  net.Conn
	since time.Time
}

func newCrowd(size int) *crowd { return &crowd{places: make(chan struct{}, size)} }

// enter waits for a place.
func (c *crowd) enter(ctx context.Context, conn net.Conn) (*guest, error) {
	for {
		timer := time.NewTimer(strangerTime / 4)
		select {
		case c.places <- struct{}{}:
			timer.Stop()
			return c.add(conn), nil
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
			c.dismiss(time.Now())
		}
	}
}

func (c *crowd) add(conn net.Conn) *guest {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := &guest{crowd: c, conn: conn, since: time.Now()}
	c.strangers = append(c.strangers, g)
	return g
}

// dismiss closes the oldest stranger's connection, if it had its time.
func (c *crowd) dismiss(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.strangers) > 0 && now.Sub(c.strangers[0].since) >= strangerTime {
		_ = c.strangers[0].conn.Close()
		c.strangers = c.strangers[1:]
	}
}

// known notes that a connection's certificate was good.
func (g *guest) known() {
	g.crowd.mu.Lock()
	defer g.crowd.mu.Unlock()
	g.crowd.strangers = slices.DeleteFunc(g.crowd.strangers, func(other *guest) bool { return other == g })
}

// leave gives the place back.
func (c *crowd) leave(g *guest) {
	g.known()
	<-c.places
}
