package ca

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
)

// requestTime bounds a whole request.
const requestTime = 30 * time.Second

// JoinOptions are what Join needs.
type JoinOptions struct {
	// Server is HOST:PORT, or HOST for the default port.
	Server string
	// Token is what `weft ca token` printed.
	Token string
	// Paths are where the identity is put.
	Paths nodeid.Paths
	// Force replaces a certificate that is there.
	Force bool
}

// Join gets a node's first certificate: it makes a key, which never leaves this machine, and has it
// signed for a token.
func Join(ctx context.Context, options JoinOptions) (*x509.Certificate, error) {
	t, err := parseToken(options.Token)
	if err != nil {
		return nil, err
	}
	defer clear(t.secret)
	server, err := address(options.Server)
	if err != nil {
		return nil, err
	}
	if !options.Force {
		for _, path := range []string{options.Paths.Cert, options.Paths.Key} {
			if _, err := os.Lstat(path); err == nil {
				return nil, fmt.Errorf("%w: %s: renew it with `weft ca renew`, or replace it with --force", ErrExists, path)
			}
		}
	}
	// Found out before the token is spent.
	if err := checkWritable(options.Paths); err != nil {
		return nil, err
	}
	var trust trusted
	config := clientTLS(trust.byPin(t.pin))
	// The trust domain is the root's, so it must be seen before the request can name the node.
	conn, err := dialTLS(ctx, server, config)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	key, csr, err := newRequest(trust.domain, t.node)
	if err != nil {
		return nil, err
	}
	said, err := post(ctx, conn, joinPath,
		joinRequest{Secret: base64.RawURLEncoding.EncodeToString(t.secret), CSR: csr})
	if err != nil {
		return nil, err
	}
	id, err := said.identity(key, trust.domain, t.node, trust.root)
	if err != nil {
		return nil, err
	}
	defer id.Zero()
	if err := id.Write(options.Paths); err != nil {
		return nil, err
	}
	return id.Leaf, writeRenewal(options.Paths, server)
}

// Renew gets a new certificate for a new key, with the one that is there and still good. server ""
// is where it came from.
func Renew(ctx context.Context, paths nodeid.Paths, server string) (*x509.Certificate, error) {
	server, err := renewalAddress(paths, server)
	if err != nil {
		return nil, err
	}
	files, err := nodeid.NewFiles(paths)
	if err != nil {
		return nil, err
	}
	own, err := files.Certificate(ctx)
	if err != nil {
		return nil, err
	}
	roots, err := files.Roots(ctx)
	if err != nil {
		return nil, err
	}
	if len(own.Leaf.URIs) != 1 {
		return nil, fmt.Errorf("%s: %w", paths.Cert, nodeid.ErrNotNode)
	}
	trustDomain, node, err := nodeid.Parse(own.Leaf.URIs[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", paths.Cert, err)
	}
	if time.Now().After(own.Leaf.NotAfter) {
		return nil, fmt.Errorf("%w: on %s: join again with a new token (`weft ca join --force`)",
			nodeid.ErrExpired, own.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	trust := trusted{domain: trustDomain}
	config := clientTLS(trust.byRoots(roots))
	config.Certificates = []tls.Certificate{*own}
	conn, err := dialTLS(ctx, server, config)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	key, csr, err := newRequest(trustDomain, node)
	if err != nil {
		return nil, err
	}
	said, err := post(ctx, conn, renewPath, renewRequest{CSR: csr})
	if err != nil {
		return nil, err
	}
	id, err := said.identity(key, trustDomain, node, nil)
	if err != nil {
		return nil, err
	}
	defer id.Zero()
	return id.Leaf, id.Write(paths)
}

func renewalAddress(paths nodeid.Paths, server string) (string, error) {
	if server == "" {
		var err error
		if server, err = RenewalServer(paths); err != nil {
			return "", err
		}
	}
	if server == "" {
		return "", fmt.Errorf("%s%s is not there, so it is not known where to renew: give --server",
			paths.Cert, renewSuffix)
	}
	return address(server)
}

// address checks HOST or HOST:PORT.
func address(server string) (string, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		host, port = server, strconv.Itoa(DefaultPort)
		if trimmed, found := bytes.CutPrefix([]byte(server), []byte("[")); found {
			host = string(bytes.TrimSuffix(trimmed, []byte("]")))
		}
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 || host == "" {
		return "", fmt.Errorf("server %q: give HOST or HOST:PORT", server)
	}
	return net.JoinHostPort(host, port), nil
}

// trusted is what is known of the authority.
type trusted struct {
	domain string
	root   *x509.Certificate
}

// byPin finds the root by its hash and remembers it.
func (t *trusted) byPin(pin []byte) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		chain := state.PeerCertificates
		at := slices.IndexFunc(chain,
			func(cert *x509.Certificate) bool { return bytes.Equal(pinOf(cert), pin) })
		if at < 1 {
			return fmt.Errorf("%w: its root has another hash", ErrPin)
		}
		root := chain[at]
		if len(root.URIs) != 1 || nodeid.CheckTrustDomain(root.URIs[0].Host) != nil {
			return fmt.Errorf("%w: its root names no trust domain", ErrPin)
		}
		t.root, t.domain = root, root.URIs[0].Host
		pool := x509.NewCertPool()
		pool.AddCert(root)
		return t.verify(chain, pool)
	}
}

func (t *trusted) byRoots(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error { return t.verify(state.PeerCertificates, roots) }
}

// verify checks that this is the authority's own server: a node's certificate would chain to the
// same root.
func (t *trusted) verify(chain []*x509.Certificate, roots *x509.CertPool) error {
	if len(chain) == 0 {
		return nodeid.ErrNoCertificate
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPin, err)
	}
	if want := "spiffe://" + t.domain + serverPath; len(chain[0].URIs) != 1 ||
		chain[0].URIs[0].String() != want {
		return fmt.Errorf("%w: its certificate is not for %s", ErrPin, want)
	}
	return nil
}

func clientTLS(verify func(tls.ConnectionState) error) *tls.Config {
	// VerifyConnection does all of it: the server is known by its SPIFFE ID, not by a host's name.
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		VerifyConnection: verify, NextProtos: []string{"http/1.1"}}
}

func dialTLS(ctx context.Context, server string, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	dialer := tls.Dialer{Config: config}
	conn, err := dialer.DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, fmt.Errorf("reach the authority at %s: %w", server, err)
	}
	return conn, nil
}

// newRequest makes a key and a request for it.
func newRequest(trustDomain, node string) (crypto.Signer, string, error) {
	uri, err := nodeid.URI(trustDomain, node)
	if err != nil {
		return nil, "", err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("make a key: %w", err)
	}
	raw, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: node}, URIs: []*url.URL{uri}}, key)
	if err != nil {
		return nil, "", fmt.Errorf("make a certificate request: %w", err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw})), nil
}

// post sends one request over a connection that stands.
func post(ctx context.Context, conn net.Conn, path string, request any) (*answer, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	defer clear(body)
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	// The whole exchange goes over conn, whose server has been checked; another connection would
	// have to be checked again.
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	message, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://authority"+path,
		bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := transport.RoundTrip(message)
	if err != nil {
		return nil, fmt.Errorf("ask the authority: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("ask the authority: %w", err)
	}
	var said answer
	if err := json.Unmarshal(text, &said); err != nil {
		return nil, fmt.Errorf("ask the authority: it answered %s, which is not its way",
			response.Status)
	}
	if response.StatusCode != http.StatusOK {
		return nil, refused(said)
	}
	return &said, nil
}

// identity checks what came before it is put to use. root, if given, must be among the roots.
func (a *answer) identity(key crypto.Signer, trustDomain, node string,
	root *x509.Certificate) (*Identity, error) {
	roots, err := nodeid.ParseBundle([]byte(a.Bundle))
	if err != nil {
		return nil, fmt.Errorf("the authority's bundle: %w", err)
	}
	if root != nil && !slices.ContainsFunc(roots, root.Equal) {
		return nil, fmt.Errorf("%w: its bundle lacks its own root", ErrPin)
	}
	pool := x509.NewCertPool()
	for _, one := range roots {
		pool.AddCert(one)
	}
	block, _ := pem.Decode([]byte(a.Cert))
	if block == nil {
		return nil, errors.New("the authority's answer holds no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the authority's certificate for this node: %w", err)
	}
	public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(key.Public()) {
		return nil, errors.New("the authority signed another key than this node's")
	}
	for _, role := range []nodeid.Role{nodeid.Client, nodeid.Server} {
		check := nodeid.Check{Roots: pool, TrustDomain: trustDomain, Role: role, Node: node,
			Now: time.Now()}
		if _, err := check.Verify([]*x509.Certificate{leaf}); err != nil {
			return nil, fmt.Errorf("the authority's certificate for this node: %w", err)
		}
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return &Identity{Cert: encodeCerts(leaf.Raw), Key: keyPEM, Bundle: encodeBundle(roots),
		Leaf: leaf}, nil
}

func encodeBundle(roots []*x509.Certificate) []byte {
	var raw [][]byte
	for _, root := range roots {
		raw = append(raw, root.Raw)
	}
	return encodeCerts(raw...)
}
