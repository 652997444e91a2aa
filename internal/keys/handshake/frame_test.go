package handshake

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// greet says HELLO by hand, as a node with the right keys does, and reads the answer.
func (n *testNode) greet(to *testNode) *session {
	t := n.fixture.t
	t.Helper()
	conn, err := n.dialTLS(to, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(n.Client.cfg, conn, to.name, true)
	if err := errors.Join(s.derive(t.Context(), 1), s.look()); err != nil {
		t.Fatal(err)
	}
	own, err := s.hello()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.write(own); err != nil {
		t.Fatal(err)
	}
	answer, err := s.expect(typeHello, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.introduced(answer.Hello); err != nil {
		t.Fatal(err)
	}
	return s
}

// A HELLO that waited while its sender gave way and got keys in another session is stale: acting on
// it would replace keys in use. So nothing happens before AGREE.
func TestStaleHello(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, nil)
	y.listen()
	s := x.greet(y)
	s.close()
	if err := y.waitServed(1); err == nil {
		t.Error("the session ended well")
	}
	if len(y.given) != 0 {
		t.Error("keys were installed for a client that was gone")
	}
}

// Who stole a node's certificate, but has no data-encryption key, neither gets keys nor keeps the
// node from getting them.
func TestStolenCertificate(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, nil)
	y.listen()
	ctx, cancel := context.WithCancelCause(t.Context())
	running, err := y.Client.peers.dial("x", cancel)
	if err != nil {
		t.Fatal(err)
	}
	x.dek[1] = dekOf(99)
	if _, err := x.Exchange(t.Context(), y.peer(), 1); !errors.Is(err, ErrKeyMismatch) {
		t.Errorf("%v", err)
	}
	if ctx.Err() != nil {
		t.Error("the dial to the real node was cut off")
	}
	y.Client.peers.end("x", running)
	if len(x.given)+len(y.given) != 0 {
		t.Error("keys were installed")
	}
}

func TestOutOfTurn(t *testing.T) {
	id := func(s *session) fingerprint { v, _ := s.secret.ID("y", "x"); return fingerprint(v) }
	for name, c := range map[string]struct {
		frames func(s *session) []*frame
		want   error
		given  int
	}{
		"hello again": {func(s *session) []*frame { h, _ := s.hello(); return []*frame{h} },
			ErrProtocol, 0},
		"done at once": {func(*session) []*frame { return []*frame{{Type: typeDone}} },
			ErrProtocol, 0},
		"ready, not agreed": {func(s *session) []*frame { return []*frame{{Type: typeRXReady, ID: id(s)}} }, ErrProtocol, 0},
		"switched first":    {func(s *session) []*frame { return []*frame{{Type: typeAgree}, {Type: typeSwitched, ID: id(s)}} }, ErrProtocol, 1},
		"wrong id":          {func(s *session) []*frame { return []*frame{{Type: typeAgree}, {Type: typeRXReady, ID: id(s) ^ 1}} }, ErrKeyMismatch, 1},
		"done early":        {func(*session) []*frame { return []*frame{{Type: typeAgree}, {Type: typeDone}} }, ErrProtocol, 1},
		"ready twice": {func(s *session) []*frame {
			return []*frame{{Type: typeAgree}, {Type: typeRXReady, ID: id(s)},
				{Type: typeRXReady, ID: id(s)}}
		}, ErrProtocol, 2},
		"refused":    {func(*session) []*frame { return []*frame{{Type: typeRefuse, Code: "no_epoch"}} }, ErrNoEpoch, 0},
		"other code": {func(*session) []*frame { return []*frame{{Type: typeRefuse, Code: "new\x1b[31m", Text: "later"}} }, ErrRefused, 0},
		"busy":       {func(*session) []*frame { return []*frame{{Type: typeBusy}} }, ErrBusy, 0},
	} {
		b := newFixture(t)
		x, y := b.node("x", 1, nil), b.node("y", 1, nil)
		// The harness would count what this liar provokes.
		delete(b.nodes, "x")
		y.config.Known = func(string) bool { return true }
		y.restart()
		y.listen()
		s := x.greet(y)
		for _, f := range c.frames(s) {
			if err := s.write(f); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		_ = s.conn.CloseWrite()
		err := y.waitServed(1)
		if !errors.Is(err, c.want) || len(y.given) != c.given ||
			strings.Contains(fmt.Sprint(err), "\x1b") {
			t.Errorf("%s: %d installed, %v", name, len(y.given), err)
		}
		s.close()
	}
}

func TestServerThatLies(t *testing.T) {
	good := func(epoch uint64, node string, offer fingerprint) func(*tls.Conn) {
		return func(conn *tls.Conn) {
			_, _ = readFrame(conn)
			_ = writeFrame(conn,
				&frame{Type: typeHello,
					Hello: &hello{Version: 1, Node: node, Epoch: epoch, Lanes: 1, Offer: offer}})
			_, _ = readFrame(conn)
		}
	}
	for name, c := range map[string]struct {
		talk func(*tls.Conn)
		want error
	}{
		"other epoch": {good(2, "y", 1), ErrProtocol},
		"other name":  {good(1, "z", 1), ErrProtocol},
		"other key":   {good(1, "y", 1), ErrKeyMismatch},
		"no hello": {func(c *tls.Conn) { _ = writeFrame(c, &frame{Type: typeDone}) },
			ErrProtocol},
		"garbage":  {func(c *tls.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }, ErrProtocol},
		"hangs up": {func(*tls.Conn) {}, nil},
		"echoes hello": {func(c *tls.Conn) { f, _ := readFrame(c); _ = writeFrame(c, f) },
			ErrProtocol},
		"echoes offer":  {func(c *tls.Conn) { f, _ := readFrame(c); f.Hello.Node = "y"; _ = writeFrame(c, f); _, _ = readFrame(c) }, ErrKeyMismatch},
		"wrong version": {func(c *tls.Conn) { f, _ := readFrame(c); f.Hello.Version = 9; _ = writeFrame(c, f) }, ErrProtocol},
	} {
		b := newFixture(t)
		x, y := b.node("x", 1, nil), b.node("y", 1, nil)
		_, err := x.Exchange(t.Context(), b.fakeServer(y, nil, c.talk), 1)
		if err == nil || (c.want != nil && !errors.Is(err, c.want)) || len(x.given) != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFramesThatAreNone(t *testing.T) {
	sized := func(size uint32, text string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, size), text...)
	}
	for name, raw := range map[string][]byte{
		"oversize":      sized(MaxFrame+1, "x"),
		"huge":          sized(0xffffffff, ""),
		"empty":         sized(0, ""),
		"not JSON":      sized(4, "\x00\x01\x02\x03"),
		"two values":    sized(32, `{"type":"done"}{"type":"done"}  `),
		"unknown type":  sized(15, `{"type":"nope"}`),
		"an array":      sized(2, `[]`),
		"deeply nested": sized(60000, strings.Repeat("[", 60000)),
	} {
		b := newFixture(t)
		x, y := b.node("x", 1, nil), b.node("y", 1, nil)
		y.listen()
		conn, err := x.dialTLS(y, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(raw); err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseWrite()
		if err := y.waitServed(1); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzFrame(f *testing.F) {
	for _, seed := range []string{
		`{"type":"hello","hello":{"version":1,"node":"a","epoch":1,"lanes":8,"txID":"0000000000000000","rxID":"00000000000000ff","offer":"0123456789abcdef"}}`,
		`{"type":"rx_ready","id":"0123456789abcdef"}`,
		`{"type":"tx_switched","id":"ffffffffffffffff"}`, `{"type":"done"}`, `{"type":"busy"}`,
		`{"type":"agree"}`, `{"type":"refuse","code":"no_epoch","text":"x"}`,
		`{"type":"done","id":"1"}`, `[[[[`, `{"type":"done"} {}`,
	} {
		f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(seed))), seed...))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := readFrame(bytes.NewReader(raw))
		if err != nil {
			return
		}
		// What is taken says the same when it is written and read again.
		var wire bytes.Buffer
		if err := writeFrame(&wire, got); err != nil {
			t.Fatal(err)
		}
		again, err := readFrame(&wire)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, again) {
			t.Fatalf("%+v became %+v", got, again)
		}
	})
}
