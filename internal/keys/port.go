package keys

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/handshake"
)

// listen serves peers, and opens the port anew when that fails.
func (m *Manager) listen(ctx context.Context) {
	if m.opt.Listen == nil {
		return
	}
	pause := retryMin
	for ctx.Err() == nil {
		listener, err := m.opt.Listen(ctx)
		if err == nil {
			m.problems.set("listen", nil)
			m.problems.set("port without filter", m.unfiltered())
			pause = retryMin
			err = m.server.Serve(ctx, listener)
		}
		if ctx.Err() != nil {
			return
		}
		m.problems.set("listen",
			fmt.Errorf("serve peers' exchanges: %w", cmp.Or(err, net.ErrClosed)))
		clock.Sleep(ctx, m.clock, pause)
		pause = min(2*pause, retryMax)
	}
}

// unfiltered says why the port has no filter.
func (m *Manager) unfiltered() error {
	if m.opt.Unfiltered == nil {
		return nil
	}
	return m.opt.Unfiltered()
}

// turned adds what never came as far as the agent.
func (m *Manager) turned() handshake.Turned {
	turned := m.server.Turned()
	if m.opt.Filter == nil {
		return turned
	}
	packets, last, err := m.opt.Filter.Refused()
	m.problems.set("port filter's count", err)
	if turned.Filtered = packets; last.IsValid() {
		turned.LastUnknown = last
	}
	return turned
}

// filter tells the kernel whom to let in. Whoever comes last tells the newest.
func (m *Manager) filter() {
	if m.opt.Filter == nil {
		return
	}
	m.filtering.Lock()
	defer m.filtering.Unlock()
	m.problems.set("port filter", m.opt.Filter.Allow(*m.peers.addresses.Load()))
}
