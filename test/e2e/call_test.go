package e2e

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/netns"
)

// call is a connected UDP socket that talks to an echo server all the time, many packets in flight.
// A connected socket takes answers only from the address that it called.
type call struct {
	to            netip.AddrPort
	conn          *net.UDPConn
	sent, answers atomic.Uint64
	over, silent  atomic.Bool
	wg            sync.WaitGroup
}

func startCall(ns string, to netip.AddrPort) (*call, error) {
	c := &call{to: to}
	err := netns.Do(ns, func() (err error) {
		c.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		return nil, err
	}
	c.wg.Go(func() {
		for !c.over.Load() {
			if !c.silent.Load() {
				if _, err := c.conn.Write([]byte("hello")); err == nil {
					c.sent.Add(1)
				}
			}
			time.Sleep(time.Millisecond)
		}
	})
	c.wg.Go(func() {
		buf := make([]byte, 64)
		for !c.over.Load() {
			if _, err := c.conn.Read(buf); err == nil {
				c.answers.Add(1)
			}
		}
	})
	return c, nil
}

func (c *call) close() {
	c.over.Store(true)
	c.conn.Close()
	c.wg.Wait()
}
