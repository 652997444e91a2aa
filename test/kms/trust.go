package kms

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A CA for the counterparts' servers, made anew by every process.
var testCA = sync.OnceValues(func() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "weft test CA"},
		NotBefore: time.Now().Add(-time.Hour),
		NotAfter:  time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert: cert, key: key}, err
})

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Trust makes a bundle of the system's CAs and the counterparts' and returns its path, for
// SSL_CERT_FILE. A process reads that variable once, before its first TLS connection: set it in
// TestMain, or give it to a child.
func Trust(dir string) (string, error) {
	ca, err := testCA()
	if err != nil {
		return "", err
	}
	var bundle bytes.Buffer
	for _, system := range []string{os.Getenv("SSL_CERT_FILE"),
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"} {
		if raw, err := os.ReadFile(system); err == nil && system != "" {
			bundle.Write(raw)
			break
		}
	}
	if err := pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw}); err != nil {
		return "", fmt.Errorf("encode CA: %w", err)
	}
	path := filepath.Join(dir, "ca-bundle.pem")
	if err := os.WriteFile(path, bundle.Bytes(), 0o600); err != nil {
		return "", fmt.Errorf("write CA bundle: %w", err)
	}
	return path, nil
}

// serverTLS is for a server at 127.0.0.1.
func serverTLS() (*tls.Config, error) {
	ca, err := testCA()
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make server key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "localhost"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("make server certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der},
		PrivateKey: key}}, NextProtos: []string{"h2", "http/1.1"}}, nil
}
