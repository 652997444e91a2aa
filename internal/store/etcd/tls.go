package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLSFiles are PEM files: the authorities of etcd's certificates, and what this client shows.
type TLSFiles struct{ CA, Cert, Key string }

// config is nil without files. The client's certificate is read anew for every connection, so that
// one that was renewed is used.
func (f TLSFiles) config() (*tls.Config, error) {
	if f == (TLSFiles{}) {
		return nil, nil
	}
	raw, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("store.etcd.tls.ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("store.etcd.tls.ca: %s has no certificate in PEM", f.CA)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	if f.Cert == "" {
		return c, nil
	}
	if _, err := f.pair(); err != nil {
		return nil, err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.pair() }
	return c, nil
}

func (f TLSFiles) pair() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("store.etcd.tls: certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	return &pair, nil
}
