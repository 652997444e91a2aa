package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"weft.dev/weft/internal/echo"
)

// udpRetry is how long EchoUDP waits for an answer before it sends again.
const udpRetry = 300 * time.Millisecond

// EchoServer echoes TCP streams and UDP datagrams on one port of every address.
type EchoServer struct {
	*echo.Server
	port uint16
}

// StartEcho listens in the network namespace on TCP and UDP; port 0 picks a free one.
func StartEcho(netNS string, port uint16) (*EchoServer, error) {
	var lastErr error
	// A port that is free for TCP may be taken for UDP: try others, when we may choose.
	for range 10 {
		e, err := startEcho(netNS, port)
		if err == nil {
			return e, nil
		}
		lastErr = err
		if port != 0 {
			break
		}
	}
	return nil, lastErr
}

func startEcho(netNS string, port uint16) (*EchoServer, error) {
	tcp, err := listenTCP(netNS, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if err != nil {
		return nil, err
	}
	port = uint16(tcp.Addr().(*net.TCPAddr).Port)
	udp, err := listenUDP(netNS, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	if err != nil {
		tcp.Close()
		return nil, err
	}
	return &EchoServer{echo.Serve(tcp, udp, 0), port}, nil
}

// Port is the port listened on.
func (e *EchoServer) Port() uint16 { return e.port }

// EchoTCP connects from a namespace, sends size bytes, expects them back and reports
// how long all of it took. src may be invalid.
func EchoTCP(ctx context.Context, netNS string, src netip.Addr, dst netip.AddrPort,
	size int) (time.Duration, error) {
	begin := time.Now()
	conn, err := dialTCP(ctx, netNS, src, dst)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	sent := payload(size)
	writeErr := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		writeErr <- errors.Join(err, conn.CloseWrite())
	}()
	got, readErr := io.ReadAll(io.LimitReader(conn, int64(size)+1))
	if err := errors.Join(readErr, <-writeErr); err != nil {
		return 0, fmt.Errorf("echo by TCP from %s, %d of %d bytes: %w", dst, len(got), size, err)
	}
	if !bytes.Equal(got, sent) {
		return 0, fmt.Errorf("echo by TCP from %s: got %d bytes, not the %d that were sent", dst,
			len(got), size)
	}
	return time.Since(begin), nil
}

// EchoUDP sends one datagram of size bytes from a namespace (again after each 300 ms without
// an answer, until ctx ends) and expects it back. src may be invalid.
func EchoUDP(ctx context.Context, netNS string, src netip.Addr, dst netip.AddrPort,
	size int) (time.Duration, error) {
	conn, err := dialUDP(netNS, src, dst)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	sent, buf := payload(size), make([]byte, 1<<16)
	begin := time.Now()
	for ctx.Err() == nil {
		if _, err := conn.Write(sent); err != nil {
			return 0, fmt.Errorf("echo by UDP from %s: %w", dst, err)
		}
		wait := time.Now().Add(udpRetry)
		if d, ok := ctx.Deadline(); ok && d.Before(wait) {
			wait = d
		}
		_ = conn.SetReadDeadline(wait)
		n, err := conn.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return 0, fmt.Errorf("echo by UDP from %s: %w", dst, err)
		case !bytes.Equal(buf[:n], sent):
			return 0, fmt.Errorf("echo by UDP from %s: got %d bytes, not the %d that were sent",
				dst, n, size)
		}
		return time.Since(begin), nil
	}
	return 0, fmt.Errorf("echo by UDP from %s: no answer to %d bytes: %w", dst, size,
		context.Cause(ctx))
}

// payload is never the same twice, so that an old answer does not pass for a new one.
func payload(size int) []byte {
	b := make([]byte, size)
	copy(b, pattern)
	for i := patternSize; i < size; i++ {
		b[i] = pattern[i%patternSize]
	}
	if size >= 8 {
		binary.BigEndian.PutUint64(b, rand.Uint64())
	}
	return b
}
