package handshake

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"weft.dev/weft/internal/keys/nodeid"
)

// tlsConfig makes the settings of one session: TLS 1.3 only, certificates on both sides, nothing
// resumed. expect is whose certificate must come, "" for any node's; name is told whose it was.
func (c *Config) tlsConfig(ctx context.Context, role nodeid.Role, expect string,
	name func(string)) (*tls.Config, error) {
	own, err := c.Identity.Certificate(ctx)
	if err != nil {
		return nil, fmt.Errorf("this node's certificate: %w", err)
	}
	roots, err := c.Identity.Roots(ctx)
	if err != nil {
		return nil, fmt.Errorf("this node's trust bundle: %w", err)
	}
	if err := c.checkOwn(own, roots, role); err != nil {
		return nil, fmt.Errorf("this node's certificate: %w", err)
	}
	peerRole := nodeid.Client
	if role == nodeid.Client {
		peerRole = nodeid.Server
	}
	return &tls.Config{
		Certificates: []tls.Certificate{*own},
		MinVersion:   tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		// X25519 also where it is not enough, so that who has no better one shows its name before
		// it is refused.
		CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519},
		NextProtos:       []string{ALPN},
		Time:             c.Now,
		ClientAuth:       tls.RequireAnyClientCert,
		// VerifyConnection does all of it, for both roles: names are SPIFFE IDs, which crypto/tls
		// does not know.
		InsecureSkipVerify:     true,
		SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if state.NegotiatedProtocol != ALPN || state.DidResume {
				return fmt.Errorf("%w: application protocol %q, resumed %t", ErrProtocol,
					state.NegotiatedProtocol, state.DidResume)
			}
			check := nodeid.Check{Roots: roots, TrustDomain: c.TrustDomain,
				Role: peerRole, Node: expect, Now: c.Now()}
			peer, err := check.Verify(state.PeerCertificates)
			if err != nil {
				return fmt.Errorf("the peer's certificate: %w", err)
			}
			name(peer)
			if c.RequirePostQuantum && state.CurveID != tls.X25519MLKEM768 {
				return fmt.Errorf("node %s: %w: it agreed on %s", peer, ErrNotPostQuantum,
					state.CurveID)
			}
			return nil
		},
	}, nil
}

// checkOwn finds out here what the peer would only say as "bad certificate".
func (c *Config) checkOwn(own *tls.Certificate, roots *x509.CertPool, role nodeid.Role) error {
	var chain []*x509.Certificate
	for _, raw := range own.Certificate {
		cert, err := x509.ParseCertificate(raw)
		if err != nil {
			return err
		}
		chain = append(chain, cert)
	}
	check := nodeid.Check{Roots: roots, TrustDomain: c.TrustDomain, Role: role, Node: c.Node,
		Now: c.Now()}
	_, err := check.Verify(chain)
	return err
}

// network names an error of the connection. An alert is all that TLS lets a peer say about a
// certificate it refuses.
func network(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return fmt.Errorf("%w: %w (its log says more; see that this node's certificate is valid there)", ErrRefused, op.Err)
	}
	return err
}

// groupName names a key agreement as its RFC does.
func groupName(id tls.CurveID) (name string, postQuantum bool) {
	return id.String(), id == tls.X25519MLKEM768
}
