package k8s

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pair are the files of a certificate and its key.
type pair struct{ cert, key string }

// authority signs what servers and clients of a test show each other.
type authority struct {
	dir, file      string
	cert           *x509.Certificate
	key            *ecdsa.PrivateKey
	server, tokens pair
	issued         int
	// addresses are those of the server.
	addresses []net.IP
}

func newAuthority(t testing.TB, dir string, server net.IP) *authority {
	t.Helper()
	a := &authority{dir: dir, addresses: []net.IP{net.IPv4(127, 0, 0, 1), server}, file: filepath.Join(dir, "ca.pem"), key: newKey(t)}
	template := template("ca")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	raw, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file, "CERTIFICATE", raw)
	a.server = a.issue(t, "localhost")
	a.tokens = a.issue(t, "tokens")
	return a
}

// issue makes a certificate for somebody who is in some groups, good for both ends.
func (a *authority) issue(t testing.TB, name string, groups ...string) pair {
	t.Helper()
	a.issued++
	files := pair{filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")}
	key := newKey(t)
	template := template(name)
	template.SerialNumber = big.NewInt(int64(a.issued) + 1)
	template.Subject.Organization = groups
	template.DNSNames = []string{"localhost"}
	template.IPAddresses = a.addresses
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
		x509.ExtKeyUsageClientAuth}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, files.cert, "CERTIFICATE", raw)
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, files.key, "EC PRIVATE KEY", private)
	return files
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t testing.TB, path, kind string, raw []byte) {
	t.Helper()
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
