package agent

import (
	"context"
	"log/slog"
	"net"
	"syscall"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/keys"
)

// keyPort is the port of exchanges, with the kernel's filter before it where it can be had.
type keyPort struct {
	address string
	filter  *datapath.SourceFilter
	log     *slog.Logger
}

// openKeyPort loads the filter. Without it the port is as safe, and a flood of strangers costs more.
func openKeyPort(address string, log *slog.Logger) *keyPort {
	filter, err := datapath.OpenSourceFilter()
	if err != nil {
		log.Warn("keys: the kernel cannot keep strangers away from the port of exchanges; the agent turns them away itself, which costs more", "error", err)
	}
	return &keyPort{address: address, filter: filter, log: log}
}

// listen opens the port. The filter is on the socket before it listens, so nobody comes past it.
func (p *keyPort) listen(ctx context.Context) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		if p.filter == nil {
			return nil
		}
		var attached error
		err := conn.Control(func(fd uintptr) { attached = p.filter.Attach(fd) })
		if attached != nil {
			p.log.Warn("keys: the port of exchanges has no filter; the agent turns strangers away itself, which costs more", "error", attached)
		}
		return err
	}}
	// Go listens for Multipath TCP where it can, and such a socket takes no filter. Peers never ask for it.
	config.SetMultipathTCP(false)
	return config.Listen(ctx, "tcp", p.address)
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
