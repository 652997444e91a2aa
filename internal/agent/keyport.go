package agent

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/keys"
)

// sourceFilter is datapath.SourceFilter.
type sourceFilter interface {
	keys.AddressFilter
	Attach(fd uintptr) error
	Close() error
}

// loadSourceFilter loads the kernel's.
func loadSourceFilter() (sourceFilter, error) {
	filter, err := datapath.OpenSourceFilter()
	if err != nil {
		return nil, err
	}
	return filter, nil
}

// keyPort is the port of exchanges, with the kernel's filter before it where it can be had.
type keyPort struct {
	address string
	filter  sourceFilter // nil: it cannot be loaded
	mu      sync.Mutex
	lacking error // why the port that was opened last has no filter
}

// openKeyPort loads the filter. Without it the port is as safe, and a flood from unknown addresses
// costs more.
func openKeyPort(address string, load func() (sourceFilter, error)) *keyPort {
	filter, err := load()
	p := &keyPort{address: address, filter: filter}
	if err != nil {
		p.lacking = unfiltered(err)
	}
	return p
}

func unfiltered(err error) error {
	return fmt.Errorf("the kernel cannot keep unknown addresses away from the port of exchanges; the agent turns them away itself, which costs more: %w", err)
}

// listen opens the port. The filter is on the socket before it listens, so nobody comes past it.
func (p *keyPort) listen(ctx context.Context) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		if p.filter == nil {
			return nil
		}
		var attached error
		err := conn.Control(func(fd uintptr) { attached = p.filter.Attach(fd) })
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.lacking = nil; attached != nil {
			p.lacking = unfiltered(attached)
		}
		return err
	}}
	// Go listens for Multipath TCP where it can, and such a socket takes no filter. Peers never ask
	// for it.
	config.SetMultipathTCP(false)
	return config.Listen(ctx, "tcp", p.address)
}

// unfiltered says why the port has no filter, nil if it has.
func (p *keyPort) unfiltered() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lacking
}

// addressFilter is the filter, nil if there is none.
func (p *keyPort) addressFilter() keys.AddressFilter {
	if p.filter == nil {
		return nil
	}
	return p.filter
}

func (p *keyPort) close() error {
	if p.filter == nil {
		return nil
	}
	return p.filter.Close()
}
