// Package nodeid is a node's identity: where its certificate comes from, and how it checks a
// peer's.
//
// A node is spiffe://TRUSTDOMAIN/node/NAME. Its certificate comes from files or from SPIRE's
// Workload API.
package nodeid

import (
	"context"
	"crypto/tls"
	"crypto/x509"
)

// Source gives a node's certificate and the roots that it trusts. It follows changes: ask anew for
// each session. It is safe for concurrent use.
type Source interface {
	// Certificate is the node's own, with its key and parsed Leaf.
	Certificate(ctx context.Context) (*tls.Certificate, error)
	// Roots is the trust domain's bundle.
	Roots(ctx context.Context) (*x509.CertPool, error)
	// Close ends what the source watches.
	Close() error
}
