// Package nodeidtest makes certificates for tests: good ones, and ones that are wrong in one way.
package nodeidtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
)

// TrustDomain is that of all certificates made here.
const TrustDomain = "test.weft"

// Authority signs certificates.
type Authority struct {
	TrustDomain string
	Cert        *x509.Certificate
	Key         *ecdsa.PrivateKey
	Pool        *x509.CertPool
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// NewAuthority makes a root, valid ten years to both sides of now.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().AddDate(-10, 0, 0),
		NotAfter:              time.Now().AddDate(10, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: TrustDomain}},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &Authority{TrustDomain: TrustDomain, Cert: cert, Key: key, Pool: pool}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Node makes a node's certificate, good but for what change does to it.
func (a *Authority) Node(t testing.TB, name string,
	change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: TrustDomain, Path: "/node/" + name}},
	}
	if change != nil {
		change(template)
	}
	key := newKey(t)
	raw, err := x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

// Write puts certificate, key and bundle into a directory, as `weft ca` would.
func (a *Authority) Write(t testing.TB, dir string, cert *tls.Certificate) nodeid.Paths {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	paths := nodeid.Paths{Cert: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key"),
		Bundle: filepath.Join(dir, "ca.crt")}
	writePEM(t, paths.Cert, "CERTIFICATE", cert.Certificate[0], 0o644)
	writePEM(t, paths.Key, "PRIVATE KEY", key, 0o600)
	writePEM(t, paths.Bundle, "CERTIFICATE", a.Cert.Raw, 0o644)
	return paths
}

func writePEM(t testing.TB, path, kind string, raw []byte, mode os.FileMode) {
	t.Helper()
	// A new file each time, as every tool that is careful does: the mode is right from the
	// beginning.
	_ = os.Remove(path)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}),
		mode); err != nil {
		t.Fatal(err)
	}
}

// Source is a nodeid.Source whose certificate the test sets.
type Source struct {
	mu    sync.Mutex
	cert  *tls.Certificate
	roots *x509.CertPool
}

// Source makes one that trusts this authority.
func (a *Authority) Source(cert *tls.Certificate) *Source {
	return &Source{cert: cert,
		roots: a.Pool}
}

// Set replaces the certificate; nil takes it away.
func (s *Source) Set(cert *tls.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cert = cert
}

// Certificate implements nodeid.Source.
func (s *Source) Certificate(context.Context) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert == nil {
		return nil, nodeid.ErrNoCertificate
	}
	return s.cert, nil
}

// Roots implements nodeid.Source.
func (s *Source) Roots(context.Context) (*x509.CertPool, error) { return s.roots, nil }

// Close implements nodeid.Source.
func (s *Source) Close() error { return nil }
