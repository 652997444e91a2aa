package keys

import (
	"cmp"
	"context"
	"fmt"
	"net"
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
			m.problem("listen", nil)
			pause = retryMin
			err = m.server.Serve(ctx, listener)
		}
		if ctx.Err() != nil {
			return
		}
		m.problem("listen", fmt.Errorf("serve peers' exchanges: %w", cmp.Or(err, net.ErrClosed)))
		m.sleep(ctx, pause)
		pause = min(2*pause, retryMax)
	}
}

// filter tells the kernel whom to let in. Whoever comes last tells the newest.
func (m *Manager) filter() {
	if m.opt.Filter == nil {
		return
	}
	m.filtering.Lock()
	defer m.filtering.Unlock()
	m.problem("port filter", m.opt.Filter.Allow(*m.addresses.Load()))
}
