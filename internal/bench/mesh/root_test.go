package mesh

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/internal/bench/load"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// startSetup starts a Setup between two namespaces on a wire, and checks at the end that nothing is
// left of it.
func startSetup(t *testing.T, envoy string) *Setup {
	t.Helper()
	tools, err := FindTools(envoy)
	if err != nil {
		t.Skipf("needs h2load and nghttpd: %v", err)
	}
	from := load.Peer{NS: nettest.New(t, "mesh"), IP: netip.MustParseAddr("10.9.0.1")}
	to := load.Peer{NS: nettest.New(t, "mesh"), IP: netip.MustParseAddr("10.9.0.2")}
	for _, p := range []load.Peer{from, to} {
		nettest.Do(t, p.NS, func() error { return nettest.Up("lo") })
	}
	nettest.Wire(t, nettest.End{NetNS: from.NS, Name: "eth0", Addrs: []string{"10.9.0.1/24"}},
		nettest.End{NetNS: to.NS, Name: "eth0", Addrs: []string{"10.9.0.2/24"}})
	dir := filepath.Join(t.TempDir(), "mesh")
	s, err := Start(t.Context(), Options{
		Tools: tools, Dir: dir, From: from, To: to, Sidecars: envoy != "",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, p := range s.servers {
			if err := p.cmd.Process.Signal(syscall.Signal(0)); err == nil {
				t.Errorf("%s still runs", p.cmd.Path)
			}
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("its files are still there: %v", err)
		}
	})
	return s
}

// TestMeasure: each kind of load, with a sample that says something.
func TestMeasure(t *testing.T) {
	s := startSetup(t, "")
	for _, l := range []Load{{KiB: 0}, {KiB: 10}, {KiB: 1, Rate: 1000}} {
		sample, err := s.Measure(t.Context(), l, 100*time.Millisecond)
		if err != nil {
			t.Fatalf("%s: %v", l.Name(), err)
		}
		if cpu, ok := sample["cpu_us_per_request"]; !ok ||
			cpu < 0 { // none in so short a time, on a machine that is idle
			t.Errorf("%s: cpu_us_per_request %v (there: %t)", l.Name(), cpu, ok)
		}
		for _, metric := range []string{"requests_s", "p50_us", "p99_us"} {
			if sample[metric] <= 0 {
				t.Errorf("%s: %s is %v", l.Name(), metric, sample[metric])
			}
		}
		if failures, ok := sample["failures"]; !ok || failures != 0 {
			t.Errorf("%s: failures %v (there: %t)", l.Name(), failures, ok)
		}
	}
}

// TestFailuresAreCounted: what the server does not have is no answer. It keeps open what it has
// served, so this is another file than the first request's.
func TestFailuresAreCounted(t *testing.T) {
	s := startSetup(t, "")
	if err := os.Remove(filepath.Join(s.opts.Dir, serverFiles, "10k")); err != nil {
		t.Fatal(err)
	}
	got, err := s.Measure(t.Context(), Load{KiB: 10}, 100*time.Millisecond)
	if !says(err, "no request was answered") {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestDeadServerIsNamed: a run without its server is no slow run.
func TestDeadServerIsNamed(t *testing.T) {
	s := startSetup(t, "")
	if err := s.servers[0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.servers[0].done
	got, err := s.Measure(t.Context(), Load{KiB: 1}, 100*time.Millisecond)
	if !says(err, "nghttpd has ended, signal: killed") {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestSidecarsWantCertificates: requests go through, and the server's sidecar takes TLS 1.3 from
// its peer alone.
func TestSidecarsWantCertificates(t *testing.T) {
	s := startSetup(t, needEnvoy(t))
	if _, err := s.Measure(t.Context(), Load{KiB: 10}, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(s.opts.Dir, "roots.pem"))
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		t.Fatalf("read the roots: %v", err)
	}
	pair := func(side string) tls.Certificate {
		path := filepath.Join(s.opts.Dir, side)
		cert, err := tls.LoadX509KeyPair(path+".crt", path+".key")
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	for _, c := range []struct {
		name    string
		version uint16
		certs   []tls.Certificate
		taken   bool
	}{
		{"the client's", tls.VersionTLS13, []tls.Certificate{pair(clientSide)}, true},
		{"another's", tls.VersionTLS13, []tls.Certificate{pair(serverSide)}, false},
		{"none", tls.VersionTLS13, nil, false},
		{"the client's by TLS 1.2", tls.VersionTLS12, []tls.Certificate{pair(clientSide)}, false},
	} {
		err := handshake(s, &tls.Config{
			// The certificate names its bearer by URI alone, which is not what Go looks for.
			InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
				_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots})
				return err
			},
			NextProtos: []string{"h2"}, Certificates: c.certs,
			MinVersion: c.version, MaxVersion: c.version,
		})
		if (err == nil) != c.taken {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// handshake connects to the server's sidecar and reads the first byte it sends: a client of TLS 1.3
// hears only then that its certificate was refused.
func handshake(s *Setup, config *tls.Config) error {
	return netns.Do(s.opts.From.NS, func() error {
		to := netip.AddrPortFrom(s.opts.To.IP, inPort).String()
		conn, err := net.DialTimeout("tcp", to, readyTimeout)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(readyTimeout)); err != nil {
			return err
		}
		client := tls.Client(conn, config)
		// HTTP/2 begins with what the client sends: its preface and an empty SETTINGS.
		const hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		if _, err := client.Write([]byte(hello)); err != nil {
			return err
		}
		_, err = client.Read(make([]byte, 1))
		return err
	})
}

// TestOutputIsBounded: what is kept is the end.
func TestOutputIsBounded(t *testing.T) {
	var o output
	for range 3 {
		_, _ = o.Write([]byte(strings.Repeat("a", maxOutput/2)))
	}
	_, _ = o.Write([]byte("end"))
	if got := o.String(); len(got) != maxOutput || !strings.HasSuffix(got, "aend") {
		t.Errorf("%d bytes, ends in %q", len(got), got[len(got)-4:])
	}
}
