package traffic

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// extendedError is the kernel's sock_extended_err with the address of whoever sent it.
type extendedError struct {
	errno      unix.Errno
	origin     uint8
	kind, code uint8
	info       uint32 // the MTU, when the packet was too big
	offender   netip.Addr
}

// readError takes one error off the socket's error queue and says whether there was one.
func (p *pinger) readError() bool {
	oob, buf := make([]byte, 512), make([]byte, 256)
	_, n, _, _, err := unix.Recvmsg(p.fd, buf, oob, unix.MSG_ERRQUEUE)
	if err != nil {
		return false
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return false
	}
	for _, m := range messages {
		v4 := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR
		v6 := m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if e, ok := parseExtendedError(m.Data); ok && (v4 || v6) {
			p.note(e)
			return true
		}
	}
	return false
}

func parseExtendedError(b []byte) (extendedError, bool) {
	if len(b) < 16 {
		return extendedError{}, false
	}
	e := extendedError{
		errno: unix.Errno(binary.NativeEndian.Uint32(b)), origin: b[4], kind: b[5], code: b[6],
		info: binary.NativeEndian.Uint32(b[8:]),
	}
	sa := b[16:]
	switch {
	case len(sa) >= 8 && binary.NativeEndian.Uint16(sa) == unix.AF_INET:
		e.offender = netip.AddrFrom4([4]byte(sa[4:8]))
	case len(sa) >= 24 && binary.NativeEndian.Uint16(sa) == unix.AF_INET6:
		e.offender = netip.AddrFrom16([16]byte(sa[8:24]))
	}
	return e, true
}

// note counts an error. One of local origin was counted when the kernel refused to send.
func (p *pinger) note(e extendedError) {
	if e.errno == unix.EMSGSIZE {
		p.report.MTU = int(e.info)
	}
	if e.origin == unix.SO_EE_ORIGIN_LOCAL {
		return
	}
	what := "unreachable: " + e.errno.Error()
	switch {
	case e.errno == unix.EMSGSIZE:
		p.report.TooBig++
		what = fmt.Sprintf("packet too big, MTU %d", e.info)
	case e.origin == unix.SO_EE_ORIGIN_ICMP && e.kind == 11, e.origin == unix.SO_EE_ORIGIN_ICMP6 &&
		e.kind == 3:
		p.report.TimeExceeded++
		what = "time exceeded"
	default:
		p.report.Unreachable++
	}
	p.report.Errors = append(p.report.Errors, fmt.Sprintf("from %s: %s", e.offender, what))
}
