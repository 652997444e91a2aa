package nodeid

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Kinds of what can be wrong with a certificate; test with errors.Is. The text of each is fit for a
// status line.
var (
	ErrNoCertificate = errors.New("no certificate")
	ErrExpired       = errors.New("the certificate has expired")
	ErrNotYetValid   = errors.New("the certificate is not valid yet")
	ErrForeign       = errors.New("the certificate is not from this cluster's authority")
	ErrTrustDomain   = errors.New("the certificate is from another trust domain")
	ErrNotNode       = errors.New("the certificate is not a node's")
	ErrWrongNode     = errors.New("the certificate is another node's")
	ErrUsage         = errors.New("the certificate may not be used for this")
)

// kinds with the word that metrics and logs use for each.
var kinds = []struct {
	err  error
	word string
}{
	{ErrNoCertificate, "no_certificate"}, {ErrExpired, "expired"},
	{ErrNotYetValid, "not_yet_valid"}, {ErrForeign, "foreign"},
	{ErrTrustDomain, "trust_domain"}, {ErrNotNode, "not_a_node"}, {ErrWrongNode, "wrong_node"},
	{ErrUsage, "usage"},
}

// Kind is one word for what is wrong with a certificate, "" if the error is not about one.
func Kind(err error) string {
	for _, kind := range kinds {
		if errors.Is(err, kind.err) {
			return kind.word
		}
	}
	return ""
}

// Role is which end of a session a certificate is shown by.
type Role x509.ExtKeyUsage

// The two ends.
const (
	Server = Role(x509.ExtKeyUsageServerAuth)
	Client = Role(x509.ExtKeyUsageClientAuth)
)

// Check is what a certificate is held to.
type Check struct {
	Roots       *x509.CertPool
	TrustDomain string
	// Role is how the other end uses it.
	Role Role
	// Node is whose it must be; "" takes any node's.
	Node string
	// Now is the moment to judge at.
	Now time.Time
}

// Verify checks a chain as it came from the other end, the leaf first, and returns the node's name.
// Everything must hold: validity, a chain to the roots, use for that role, exactly one URI, our
// trust domain, the path /node/NAME, the expected name.
func (c Check) Verify(chain []*x509.Certificate) (string, error) {
	if len(chain) == 0 {
		return "", ErrNoCertificate
	}
	leaf := chain[0]
	if err := c.validity(leaf); err != nil {
		return "", err
	}
	if c.Roots == nil {
		return "", fmt.Errorf("%w: no roots to judge it by", ErrForeign)
	}
	if leaf.IsCA {
		return "", fmt.Errorf("%w: it is an authority's own", ErrNotNode)
	}
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: c.Roots, Intermediates: intermediates, CurrentTime: c.Now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsage(c.Role)},
	})
	if err != nil {
		return "", c.chainError(err)
	}
	return c.name(leaf)
}

func (c Check) validity(cert *x509.Certificate) error {
	if c.Now.Before(cert.NotBefore) {
		return fmt.Errorf("%w: from %s on, and this node's clock says %s", ErrNotYetValid,
			stamp(cert.NotBefore), stamp(c.Now))
	}
	if c.Now.After(cert.NotAfter) {
		return fmt.Errorf("%w: it was valid until %s, and this node's clock says %s", ErrExpired,
			stamp(cert.NotAfter), stamp(c.Now))
	}
	return nil
}

// chainError names what crypto/x509 found.
func (c Check) chainError(err error) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) {
		switch invalid.Reason {
		case x509.Expired:
			// The leaf is valid, so it is an authority above it.
			if invalid.Cert != nil {
				if err := c.validity(invalid.Cert); err != nil {
					return fmt.Errorf("authority %s: %w", invalid.Cert.Subject, err)
				}
			}
			return fmt.Errorf("%w: %w", ErrExpired, err)
		case x509.IncompatibleUsage:
			return fmt.Errorf("%w: it needs the extended key usages for client and for server",
				ErrUsage)
		}
	}
	return fmt.Errorf("%w: %w", ErrForeign, err)
}

// name reads the node's name from a leaf whose chain is good.
func (c Check) name(leaf *x509.Certificate) (string, error) {
	if len(leaf.URIs) != 1 {
		return "", fmt.Errorf("%w: it has %d URIs, want exactly one", ErrNotNode, len(leaf.URIs))
	}
	if leaf.KeyUsage != 0 && leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return "", fmt.Errorf("%w: it needs the key usage for digital signatures", ErrUsage)
	}
	trustDomain, node, err := Parse(leaf.URIs[0])
	if trustDomain != "" && trustDomain != c.TrustDomain {
		return "", fmt.Errorf("%w: %q, and this node's is %q", ErrTrustDomain, trustDomain,
			c.TrustDomain)
	}
	if err != nil {
		return "", err
	}
	if c.Node != "" && node != c.Node {
		return "", fmt.Errorf("%w: %q, not %q", ErrWrongNode, node, c.Node)
	}
	return node, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
