package handshake

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
)

// waitServed waits until a node's server has told how a session ended.
func (n *testNode) waitServed(count int) error {
	n.fixture.t.Helper()
	for range 3000 {
		if got := n.errors(); len(got) >= count {
			return got[count-1]
		}
		time.Sleep(10 * time.Millisecond)
	}
	n.fixture.t.Fatalf("%s: no session ended", n.name)
	return nil
}

func TestCertificates(t *testing.T) {
	hour := time.Hour
	for _, c := range []struct {
		name   string
		change func(*x509.Certificate)
		want   error
	}{
		{"expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) },
			nodeid.ErrExpired},
		{"not yet valid", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(hour) },
			nodeid.ErrNotYetValid},
		{"another trust domain", func(c *x509.Certificate) { c.URIs[0].Host = "other.weft" },
			nodeid.ErrTrustDomain},
		{"a workload's", func(c *x509.Certificate) { c.URIs[0].Path = "/ns/default/sa/node" },
			nodeid.ErrNotNode},
		{"no URI", func(c *x509.Certificate) { c.URIs = nil; c.DNSNames = []string{"bad"} },
			nodeid.ErrNotNode},
		{"no usage",
			func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }, nodeid.ErrUsage},
	} {
		b := newFixture(t)
		good, bad := b.node("good", 1, nil), b.node("bad", 1, nil)
		good.listen()
		own := bad.source
		own.Set(b.authority.Node(t, "bad", c.change))
		// The node itself sees it first, and says so without troubling anybody.
		if _, err := bad.Exchange(t.Context(), good.peer(), 1); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), "this node's certificate") {
			t.Errorf("%s: own: %v", c.name, err)
		}
		// One that does not look is refused by the server …
		cert, _ := own.Certificate(t.Context())
		own.Set(b.authority.Node(t, "bad", nil))
		use := func(config *tls.Config) { config.Certificates = []tls.Certificate{*cert} }
		conn, err := bad.dialTLS(good, use)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err := good.waitServed(1); !errors.Is(err, c.want) {
			t.Errorf("%s: the server says %v", c.name, err)
		}
		if !errors.Is(network(err), ErrRefused) {
			t.Errorf("%s: the client hears %v", c.name, err)
		}
		// … and by a client that dials it.
		fake := b.fakeServer(bad, use, nil)
		if _, err := good.Exchange(t.Context(), fake, 1); !errors.Is(err, c.want) {
			t.Errorf("%s: a client says %v", c.name, err)
		}
		if len(good.given)+len(bad.given) != 0 {
			t.Errorf("%s: keys were installed", c.name)
		}
	}
}

// fakeServer accepts one session as a node that keeps to no rule; talk may be nil.
func (b *fixture) fakeServer(n *testNode, change func(*tls.Config), talk func(*tls.Conn)) Peer {
	b.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	config, err := n.Client.cfg.tlsConfig(b.t.Context(), nodeid.Server, "", func(string) {})
	if err != nil {
		b.t.Fatal(err)
	}
	if change != nil {
		change(config)
	}
	var ended sync.WaitGroup
	b.t.Cleanup(func() { _ = listener.Close(); ended.Wait() })
	ended.Go(func() {
		raw, err := listener.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		conn := tls.Server(raw, config)
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		if conn.Handshake() == nil && talk != nil {
			talk(conn)
		}
	})
	return Peer{Name: n.name, Addresses: []string{listener.Addr().String()}}
}

func TestForeignAuthority(t *testing.T) {
	b, other := newFixture(t), newFixture(t)
	good, foreign := b.node("good", 1, nil), other.node("good2", 1, nil)
	b.nodes["good2"] = foreign
	good.listen()
	foreign.listen()
	if _, err := good.Exchange(t.Context(), foreign.peer(), 1); !errors.Is(err, nodeid.ErrForeign) {
		t.Errorf("dialling: %v", err)
	}
	conn, err := foreign.dialTLS(good, func(c *tls.Config) { c.VerifyConnection = nil })
	if err == nil {
		_, _ = conn.Read(make([]byte, 1))
	}
	if err := good.waitServed(1); !errors.Is(err, nodeid.ErrForeign) {
		t.Errorf("serving: %v", err)
	}
}

func TestTLSRules(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*tls.Config)
		want   string
	}{
		"no client certificate": {func(c *tls.Config) { c.Certificates = nil },
			"didn't provide a certificate"},
		"TLS 1.2": {func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, "unsupported versions"},
		"wrong ALPN": {func(c *tls.Config) { c.NextProtos = []string{"h2"} },
			"unsupported application protocols"},
		"no ALPN": {func(c *tls.Config) { c.NextProtos = nil },
			"application protocol"},
		"P-256 only": {func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.CurveP256} },
			"no key exchanges"},
	} {
		b := newFixture(t)
		x, y := b.node("x", 1, nil), b.node("y", 1, nil)
		y.listen()
		conn, err := x.dialTLS(y,
			func(config *tls.Config) { config.VerifyConnection = nil; c.change(config) })
		if err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, err = conn.Read(make([]byte, 1))
		}
		if err == nil {
			t.Errorf("%s: taken", name)
		}
		if err := y.waitServed(1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the server says %v", name, err)
		}
	}
	// A server that speaks only TLS 1.2, or another protocol.
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, nil)
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.2":    func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
		"wrong ALPN": func(c *tls.Config) { c.NextProtos = []string{"h2"}; c.VerifyConnection = nil },
		"no ALPN":    func(c *tls.Config) { c.NextProtos = nil; c.VerifyConnection = nil },
	} {
		if _, err := x.Exchange(t.Context(), b.fakeServer(y, change, nil), 1); err == nil {
			t.Errorf("server with %s: taken", name)
		}
	}
}

// The certificate is good in every respect, but its node has no Node object here.
func TestUnknownNode(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1,
		func(c *Config) { c.Known = func(string) bool { return false } })
	y.listen()
	_, err := x.Exchange(t.Context(), y.peer(), 1)
	if !errors.Is(err, ErrRefused) || !errors.Is(err, ErrUnknownNode) {
		t.Errorf("%v", err)
	}
	if err := y.waitServed(1); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("served: %v", err)
	}
}

func TestAnotherNodesName(t *testing.T) {
	b := newFixture(t)
	x, y, z := b.node("x", 1, nil), b.node("y", 1, nil), b.node("z", 1, nil)
	y.listen()
	z.listen()
	// Who answers at z's address is y.
	if _, err := x.Exchange(t.Context(), Peer{Name: "z", Addresses: []string{y.addr}},
		1); !errors.Is(err, nodeid.ErrWrongNode) {
		t.Errorf("wrong server: %v", err)
	}
	// x's certificate, z's name in HELLO; and a node that comes back to itself.
	for name, from := range map[string]*testNode{"z": x, "y": y} {
		before := len(y.errors())
		conn, err := from.dialTLS(y, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = writeFrame(conn,
			&frame{Type: typeHello,
				Hello: &hello{Version: 1, Node: name, Epoch: 1, Lanes: 1, Offer: 1}})
		if err != nil {
			t.Fatal(err)
		}
		f, err := readFrame(conn)
		if err != nil || f.Type != typeRefuse {
			t.Errorf("%s: answered %+v, %v", name, f, err)
		}
		_ = conn.CloseWrite()
		if err := y.waitServed(before + 1); err == nil {
			t.Errorf("%s: served", name)
		}
	}
	if len(y.given) != 0 {
		t.Error("keys were installed")
	}
}

// Connections that say nothing, or say it very slowly, take no place from a peer for long.
func TestSlowPeers(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, func(c *Config) { c.Sessions = 4 })
	slow := b.node("slow", 1, func(c *Config) { c.Timeout = 2 * time.Second })
	y.listen()
	slow.listen()
	for range 12 {
		conn, err := net.Dial("tcp", y.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		if _, err := x.Exchange(ctx, y.peer(), 1); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	// A frame that never ends, behind a good certificate.
	conn, err := x.dialTLS(slow, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for _, c := range []byte(strings.Repeat("\x00", 3) + "\x7f" + strings.Repeat(" ", 100)) {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				_, _ = conn.Write([]byte{c})
			}
		}
	}()
	var timeout net.Error
	if err := slow.waitServed(1); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a slow frame: %v", err)
	}
}

// The clock is injected: certificates are judged by it, deadlines are not.
func TestClockJumps(t *testing.T) {
	var mu sync.Mutex
	offset := time.Duration(0)
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(offset) }
	jump := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); offset = d }
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, func(c *Config) { c.Now = clock })
	y.listen()
	for i, c := range []struct {
		jump time.Duration
		want error
	}{{48 * time.Hour, nodeid.ErrExpired}, {-48 * time.Hour, nodeid.ErrNotYetValid}} {
		jump(c.jump)
		if _, err := x.Exchange(t.Context(), y.peer(), 1); err == nil {
			t.Errorf("jump of %v: taken", c.jump)
		}
		if err := y.waitServed(i + 1); !errors.Is(err, c.want) {
			t.Errorf("jump of %v: %v", c.jump, err)
		}
	}
	jump(0)
	b.exchange(x, y, 1)
	b.settled(x, y, 1)
}

// A certificate that was replaced is used from the next session on.
func TestCertificateIsAskedForEachSession(t *testing.T) {
	b := newFixture(t)
	x, y := b.node("x", 1, nil), b.node("y", 1, nil)
	y.listen()
	x.source.Set(nil)
	if _, err := x.Exchange(t.Context(), y.peer(), 1); !errors.Is(err, nodeid.ErrNoCertificate) {
		t.Errorf("%v", err)
	}
	x.source.Set(b.authority.Node(t, "x", nil))
	b.exchange(x, y, 1)
	y.source.Set(nil)
	if _, err := x.Exchange(t.Context(), y.peer(), 1); err == nil {
		t.Error("a server without a certificate serves")
	}
}

// Neither errors nor logs hold what is secret.
func TestNothingSecretIsSaid(t *testing.T) {
	var logged bytes.Buffer
	b := newFixture(t)
	log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	x, y := b.node("x", 1, func(c *Config) { c.Log = log }), b.node("y", 1,
		func(c *Config) { c.Log = log })
	y.listen()
	said := fmt.Sprintf("%+v", b.exchange(x, y, 1))
	x.dek[2] = dekOf(3)
	_, err := x.Exchange(t.Context(), y.peer(), 2)
	said += err.Error() + logged.String() + fmt.Sprint(y.errors())
	for _, secret := range [][]byte{dekOf(1), dekOf(2), dekOf(3)} {
		for _, form := range []string{string(secret), hex.EncodeToString(secret),
			fmt.Sprint(secret)} {
			if strings.Contains(said, form) {
				t.Errorf("said: %s", said)
			}
		}
	}
	for _, held := range []*sa{x.get(true, "y", 1), x.get(false, "y", 1)} {
		k := held.lanes[0]
		if strings.Contains(said, hex.EncodeToString(k[:8])) {
			t.Errorf("said: %s", said)
		}
	}
}

var _ nodeid.Source = (*nodeidtest.Source)(nil)
