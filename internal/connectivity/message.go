package connectivity

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
)

// message is what a probe sends and how it knows the answer: random content, so that
// neither another probe's nor an earlier attempt's answer is taken for it.
type message struct {
	wire  []byte
	reply byte // the ICMP type of the answer
	icmp  bool
	// ipv4 answers are read from a raw socket, with their IP header.
	ipv4 bool
}

// message makes a payload of a size, with an ICMP echo header before it where one is needed.
func (p *probe) message(size int) message {
	payload := make([]byte, size)
	_, _ = rand.Read(payload)
	if p.protocol == "udp" {
		return message{wire: payload}
	}
	var random [4]byte
	_, _ = rand.Read(random[:])
	id, seq := binary.BigEndian.Uint16(random[:]), binary.BigEndian.Uint16(random[2:])
	m := message{reply: inet.EchoReply6, icmp: true}
	if p.family == "v4" {
		m.reply, m.ipv4 = inet.EchoReply4, true
	}
	m.wire = inet.Echo(m.ipv4, id, seq, payload)
	return m
}

// answeredBy says whether a received packet is this message's echo.
func (m message) answeredBy(got []byte) bool {
	if !m.icmp {
		return bytes.Equal(got, m.wire)
	}
	if m.ipv4 {
		got, _ = inet.SkipIPv4(got)
	}
	return len(got) == len(m.wire) && got[0] == m.reply && bytes.Equal(got[4:], m.wire[4:])
}

// transfer sends random bytes over TCP and expects them back.
func (p *probe) transfer(ctx context.Context) Result {
	result := p.result("transfer", transferSize)
	connection, rtt, err := p.connect(ctx)
	if err != nil {
		result.Detail = "connect: " + explain(err)
		return result
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { connection.Close() })()
	result.RTT = micros(rtt)
	if err := p.roundTrip(connection); err != nil {
		result.Detail = explain(err)
		return result
	}
	result.OK = true
	return result
}

// transferFactor is how much longer than one packet a transfer may take.
const transferFactor = 5

func (p *probe) connect(ctx context.Context) (net.Conn, time.Duration, error) {
	var connection net.Conn
	began := time.Now()
	err := netns.Do(p.from.NetNS, func() (err error) {
		dialer := net.Dialer{
			Timeout:   p.opt.Timeout * transferFactor,
			LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.from.addr(p.family), 0)),
		}
		connection, err = dialer.DialContext(ctx, "tcp", p.server.tcp.String())
		return err
	})
	return connection, time.Since(began), err
}

func (p *probe) roundTrip(connection net.Conn) error {
	if err := connection.SetDeadline(time.Now().Add(p.opt.Timeout * transferFactor)); err != nil {
		return err
	}
	sent := make([]byte, transferSize)
	_, _ = rand.Read(sent)
	writeErr := make(chan error, 1)
	go func() {
		_, err := connection.Write(sent)
		writeErr <- err
	}()
	got := make([]byte, transferSize)
	count, err := io.ReadFull(connection, got)
	if sendErr := <-writeErr; err == nil {
		err = sendErr
	}
	if err != nil {
		return fmt.Errorf("%s after %d of %d bytes", explain(err), count, transferSize)
	}
	if !bytes.Equal(sent, got) {
		return errors.New("the bytes that came back are not those that were sent")
	}
	return nil
}
