package sealer

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sealer/control"
)

const (
	maxConns    = 16
	sendTimeout = 5 // seconds, for who asks and does not read
)

// server answers on the control socket. Plain blocking calls: the runtime's poller would need more
// system calls than the filter lets through.
type server struct {
	fd      int
	handler control.Handler
	conns   atomic.Int32
}

// listen makes this process the one that connecting peers are told of.
func (s *server) listen() error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return fmt.Errorf("ask for credentials on the control socket: %w", err)
	}
	if err := unix.Listen(s.fd, maxConns); err != nil {
		return fmt.Errorf("listen on the control socket: %w", err)
	}
	return nil
}

// serve accepts until the socket fails.
func (s *server) serve() error {
	for {
		fd, _, err := unix.Accept4(s.fd, unix.SOCK_CLOEXEC)
		switch err {
		case nil:
		case unix.EINTR, unix.ECONNABORTED:
			continue
		default:
			return fmt.Errorf("accept on the control socket: %w", err)
		}
		if s.conns.Load() >= maxConns || !s.admit(fd) {
			unix.Close(fd) //nolint:errcheck // nothing was written to it
			continue
		}
		s.conns.Add(1)
		go s.converse(fd)
	}
}

// admit says whether root is at the other end, and has each message say so again.
func (s *server) admit(fd int) bool {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || cred.Uid != 0 {
		return false
	}
	timeout := unix.Timeval{Sec: sendTimeout}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1) == nil &&
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout) == nil
}

// converse answers one peer until it leaves or says what is no request.
func (s *server) converse(fd int) {
	defer s.conns.Add(-1)
	defer unix.Close(fd) //nolint:errcheck // what was to be written was, or the peer is gone
	memory, err := pages(int(unsafe.Sizeof(control.Buffers{})))
	if err != nil {
		return
	}
	defer release(memory)
	a := &control.Answerer{
		Handler: s.handler, Buffers: (*control.Buffers)(unsafe.Pointer(&memory[0])),
		Send: func(message []byte, pass int) error { return send(fd, message, pass) },
	}
	buf := a.Buffers.Request[:]
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		// What is longer is cut and then fails; descriptors have no room here and are closed.
		n, oobn, flags, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		whole := flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0
		if err != nil || n == 0 || !whole || !fromRoot(oob[:oobn]) || a.Answer(buf[:n]) != nil {
			return
		}
	}
}

// fromRoot says whether the kernel vouches for who sent a message.
func fromRoot(oob []byte) bool {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return false
	}
	cred, err := unix.ParseUnixCredentials(&messages[0])
	return err == nil && cred.Uid == 0
}

func send(fd int, message []byte, pass int) error {
	var oob []byte
	if pass != control.NoFD {
		oob = unix.UnixRights(pass)
	}
	for {
		_, err := unix.SendmsgN(fd, message, oob, nil, unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}
