package ca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
)

func TestRenewRefusals(t *testing.T) {
	a := newAuthority(t)
	server := serve(t, a, DefaultValid)
	write := func(id *Identity) nodeid.Paths {
		paths := pathsIn(t.TempDir())
		if err := id.Write(paths); err != nil {
			t.Fatal(err)
		}
		return paths
	}
	good, err := a.Issue("n1", DefaultValid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(t.Context(), write(good), ""); err == nil ||
		!strings.Contains(err.Error(), "give --server") {
		t.Errorf("unknown server: %v", err)
	}
	if _, err := Renew(t.Context(), write(good), server); err != nil {
		t.Errorf("good: %v", err)
	}
	// Expired: the node sees it itself, and the server would too.
	short := *a
	short.now = func() time.Time { return time.Now().Add(-48 * time.Hour) }
	old, err := short.Issue("n1", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(t.Context(), write(old), server); !errors.Is(err, nodeid.ErrExpired) {
		t.Errorf("expired: %v", err)
	}
	if err := ask(t, a, server, old, "n1"); !errors.Is(err, nodeid.ErrExpired) {
		t.Errorf("expired, at the server: %v", err)
	}
	// Another authority's node, and another node's name.
	if _, err := Renew(t.Context(), write(mustIssue(t, newAuthority(t))), server); !errors.Is(err,
		ErrPin) {
		t.Errorf("foreign: %v", err)
	}
	if err := ask(t, a, server, mustIssue(t, newAuthority(t)), "n1"); !errors.Is(err,
		nodeid.ErrForeign) {
		t.Errorf("foreign, at the server: %v", err)
	}
	if err := ask(t, a, server, good, "n2"); !errors.Is(err, nodeid.ErrWrongNode) {
		t.Errorf("another's name: %v", err)
	}
	if err := ask(t, a, server, nil, "n1"); !errors.Is(err, nodeid.ErrNoCertificate) {
		t.Errorf("no certificate: %v", err)
	}
}

// Only a node's newest certificate is renewed, so that who stole the key of an older one comes to
// an end.
func TestSuperseded(t *testing.T) {
	a := newAuthority(t)
	server := serve(t, a, DefaultValid)
	mine, stolen := pathsIn(t.TempDir()), pathsIn(t.TempDir())
	old := mustIssue(t, a)
	for _, paths := range []nodeid.Paths{mine, stolen} {
		if err := old.Write(paths); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Renew(t.Context(), mine, server); err != nil {
		t.Fatal(err)
	}
	// The answer may have been lost, so the old one may ask again; then the other is not the newest
	// any more.
	if _, err := Renew(t.Context(), stolen, server); err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(t.Context(), mine, server); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the node whose key was stolen: %v", err)
	}
	// It joins anew, and the thief is out.
	if _, err := Join(t.Context(),
		JoinOptions{Server: server, Token: newToken(t, a, "n1"), Paths: mine,
			Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(t.Context(), stolen, server); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the thief: %v", err)
	}
	if _, err := Renew(t.Context(), mine, server); err != nil {
		t.Errorf("the node: %v", err)
	}
	// A day later not even a lost answer lets an older one in.
	late := *a
	late.now = func() time.Time { return time.Now().Add(2 * lostAnswer) }
	log, err := a.Issued()
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := new(big.Int).SetString(log[len(log)-1].From, 16)
	if err := a.renewable("n1", &x509.Certificate{SerialNumber: serial}); err != nil {
		t.Error(err)
	}
	if err := late.renewable("n1", &x509.Certificate{SerialNumber: serial}); !errors.Is(err,
		ErrSuperseded) {
		t.Error(err)
	}
}

func mustIssue(t *testing.T, a *Authority) *Identity {
	t.Helper()
	id, err := a.Issue("n1", DefaultValid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// ask asks for a renewal with any certificate and for any name, as Renew would not.
func ask(t *testing.T, a *Authority, server string, id *Identity, node string) error {
	t.Helper()
	trust := trusted{domain: a.trustDomain}
	config := clientTLS(trust.byRoots(a.roots()))
	if id != nil {
		pair, err := tls.X509KeyPair(id.Cert, id.Key)
		if err != nil {
			t.Fatal(err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	conn, err := dialTLS(t.Context(), server, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, csr, err := newRequest(a.trustDomain, node)
	if err != nil {
		t.Fatal(err)
	}
	_, err = post(t.Context(), conn, renewPath, renewRequest{CSR: csr})
	return err
}

func TestRequests(t *testing.T) {
	a := newAuthority(t)
	server, err := a.NewServer(DefaultValid, nil)
	if err != nil {
		t.Fatal(err)
	}
	uri := func(text string) []*url.URL { parsed, _ := url.Parse(text); return []*url.URL{parsed} }
	request := func(key any, uris []*url.URL) string {
		raw, err := x509.CreateCertificateRequest(rand.Reader,
			&x509.CertificateRequest{URIs: uris, DNSNames: []string{"www.example.com"}}, key)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw}))
	}
	p256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p224, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	rsaKey, _ := rsa.GenerateKey(rand.Reader, 2048)
	own := uri("spiffe://td.test/node/n1")
	good := request(p256, own)
	block, _ := pem.Decode([]byte(good))
	block.Bytes[len(block.Bytes)-1] ^= 1
	for name, c := range map[string]struct {
		csr  string
		want error
	}{
		"P-256":         {good, nil},
		"Ed25519":       {request(ed, own), nil},
		"RSA 2048":      {request(rsaKey, own), nil},
		"P-224":         {request(p224, own), ErrRequest},
		"nothing":       {"", ErrRequest},
		"garbage":       {"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", ErrRequest},
		"bad signature": {string(pem.EncodeToMemory(block)), ErrRequest},
		"no URI":        {request(p256, nil), ErrRequest},
		"two URIs": {request(p256, append(uri("spiffe://td.test/node/n2"), own...)),
			ErrRequest},
		"a workload":     {request(p256, uri("spiffe://td.test/ns/a/sa/b")), ErrRequest},
		"the authority":  {request(p256, uri("spiffe://td.test/ca")), ErrRequest},
		"another node":   {request(p256, uri("spiffe://td.test/node/n2")), nodeid.ErrWrongNode},
		"another domain": {request(p256, uri("spiffe://other/node/n1")), nodeid.ErrWrongNode},
	} {
		if _, err := server.checkCSR(c.csr, "n1"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Whatever else a request asks for is not given.
	public, err := server.checkCSR(good, "n1")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.sign("n1", public, time.Hour, "join", "")
	if err != nil || len(leaf.DNSNames) != 0 {
		t.Errorf("%v, %v", leaf.DNSNames, err)
	}
}

// A crash between putting the certificate and the key in place leaves a pair that is found.
func TestCrashWhileReplacing(t *testing.T) {
	a := newAuthority(t)
	paths := pathsIn(t.TempDir())
	if err := mustIssue(t, a).Write(paths); err != nil {
		t.Fatal(err)
	}
	next := mustIssue(t, a)
	if err := replace(paths.Key+nodeid.NextSuffix, next.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	for step, write := range []func() error{
		func() error { return nil },
		func() error { return replace(paths.Cert, next.Cert, 0o644) },
		func() error { return os.Rename(paths.Key+nodeid.NextSuffix, paths.Key) },
	} {
		if err := write(); err != nil {
			t.Fatal(err)
		}
		files, err := nodeid.NewFiles(paths)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := files.Certificate(t.Context())
		if err != nil || (step > 0) != cert.Leaf.Equal(next.Leaf) {
			t.Errorf("step %d: %v", step, err)
		}
	}
}

func TestRenewIfDue(t *testing.T) {
	a := newAuthority(t)
	paths := pathsIn(t.TempDir())
	server := serve(t, a, DefaultValid)
	if _, err := Join(t.Context(),
		JoinOptions{Server: server, Token: newToken(t, a, "n1"), Paths: paths}); err != nil {
		t.Fatal(err)
	}
	at := time.Duration(0)
	r := Renewer{Paths: paths, Now: func() time.Time { return time.Now().Add(at) }}
	for _, c := range []struct {
		at   time.Duration
		want bool
	}{{0, false}, {DefaultValid / 2, false}, {DefaultValid*2/3 + time.Hour, true}} {
		at = c.at
		if got, err := r.RenewIfDue(t.Context()); got != c.want || err != nil {
			t.Errorf("after %v: %t, %v", c.at, got, err)
		}
	}
	// Certificates from elsewhere are not touched.
	authority := nodeidtest.NewAuthority(t)
	foreign := authority.Write(t, t.TempDir(), authority.Node(t, "n1", nil))
	at = 1000 * time.Hour
	if got, err := (&Renewer{Paths: foreign, Now: r.Now}).RenewIfDue(t.Context()); got ||
		err != nil {
		t.Errorf("%t, %v", got, err)
	}
	// The authority is away: an error, and the old certificate stays.
	before, _ := os.ReadFile(paths.Cert)
	if got, err := (&Renewer{Paths: paths, Now: r.Now,
		Server: "127.0.0.1:1"}).RenewIfDue(t.Context()); got || err == nil {
		t.Errorf("%t, %v", got, err)
	}
	if after, _ := os.ReadFile(paths.Cert); !bytes.Equal(before, after) {
		t.Error("the certificate changed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan error, 1)
	done := make(chan struct{})
	r.Renewed = func(err error) { told <- err }
	go func() { defer close(done); r.Run(ctx) }()
	if err := <-told; err != nil {
		t.Error(err)
	}
	cancel()
	<-done
}

// Nodes trust what the authority's file lists, so a new root can be there before it signs.
func TestRootRotation(t *testing.T) {
	a, next := newAuthority(t), newAuthority(t)
	file, err := os.OpenFile(filepath.Join(a.dir, "ca.crt"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(next.Bundle()); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	both, err := Open(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	paths := pathsIn(t.TempDir())
	if _, err := Join(t.Context(),
		JoinOptions{Server: serve(t, both, DefaultValid), Token: newToken(t, both, "n1"),
			Paths: paths}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(paths.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	if roots, err := nodeid.ParseBundle(text); err != nil || len(roots) != 2 {
		t.Errorf("%d roots, %v", len(roots), err)
	}
}
