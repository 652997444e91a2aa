// Package ca is a small certificate authority for labs and for clusters of one owner. It signs
// nodes' certificates and nothing else; whoever has an authority already uses that, or SPIRE.
//
// Its directory holds the root's certificate and key, the hashes of tokens, and a log of what it
// signed.
package ca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/statefile"
)

const (
	// DefaultDir is where the authority lives.
	DefaultDir = "/etc/weft/ca"
	// DefaultValid is a node certificate's life. Nothing revokes a certificate before its time, so
	// it is short enough to bound what a stolen key is good for. It is renewed when two thirds are
	// over, so the authority may be away for ten days.
	DefaultValid = 30 * 24 * time.Hour
	// MaxValid bounds what may be asked for.
	MaxValid = 365 * 24 * time.Hour
	// DefaultRootValid is the root's life.
	DefaultRootValid = 10 * 365 * 24 * time.Hour
	// backdate lets a node use its certificate although its clock is behind the authority's.
	backdate = 10 * time.Minute

	// lostAnswer is how long a certificate may be renewed again: the answer to the first time may
	// have been lost.
	lostAnswer = 24 * time.Hour

	certFile   = "ca.crt"
	keyFile    = "ca.key"
	issuedFile = "issued.jsonl"
	// serverPath is the SPIFFE path of the authority's own server: no node's certificate may pose
	// as it.
	serverPath = "/ca"
)

// Authority is an opened certificate authority.
type Authority struct {
	dir         string
	trustDomain string
	root        *x509.Certificate
	bundle      []*x509.Certificate
	key         crypto.Signer
	// now is the clock, for tests.
	now func() time.Time
}

// Init makes a new authority in a directory that holds none.
func Init(dir, trustDomain string, valid time.Duration) (*Authority, error) {
	if err := nodeid.CheckTrustDomain(trustDomain); err != nil {
		return nil, err
	}
	if valid < 24*time.Hour {
		return nil, fmt.Errorf("a root that is valid for %v: give at least a day", valid)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the authority's directory: %w", err)
	}
	for _, name := range []string{certFile, keyFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is there already: an authority is made once; give another directory, or remove this one by hand", filepath.Join(dir, name))
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the root's key: %w", err)
	}
	raw, err := signRoot(key, trustDomain, valid)
	if err != nil {
		return nil, err
	}
	if err := tryRoot(raw, key, trustDomain); err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	defer clear(keyPEM)
	// The certificate comes last: a directory without it is not an authority.
	if err := statefile.Create(filepath.Join(dir, keyFile), keyPEM, 0o600); err != nil {
		return nil, fmt.Errorf("write the root's key: %w", err)
	}
	if err := statefile.Create(filepath.Join(dir, certFile), encodeCerts(raw), 0o644); err != nil {
		return nil, fmt.Errorf("write the root: %w", err)
	}
	return Open(dir)
}

func signRoot(key crypto.Signer, trustDomain string, valid time.Duration) ([]byte, error) {
	number, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: "Weft node authority",
			Organization: []string{trustDomain}},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(valid),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		URIs:     []*url.URL{{Scheme: "spiffe", Host: trustDomain}},
		// Should somebody put this root where it does not belong, it vouches for no other trust
		// domain.
		PermittedURIDomains: []string{trustDomain}, PermittedDNSDomainsCritical: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the root: %w", err)
	}
	return raw, nil
}

// tryRoot signs a node's certificate and judges it as a peer would: some names that SPIFFE lets
// pass, such as an address, can be no constraint of X.509, and nodes would find that out too late.
func tryRoot(raw []byte, key crypto.Signer, trustDomain string) error {
	root, err := x509.ParseCertificate(raw)
	if err != nil {
		return fmt.Errorf("trust domain %q: the root cannot be read back: %w", trustDomain, err)
	}
	a := &Authority{trustDomain: trustDomain, root: root, bundle: []*x509.Certificate{root},
		key: key, now: time.Now}
	uri, err := nodeid.URI(trustDomain, "node")
	if err != nil {
		return err
	}
	leaf, err := a.signLeaf(&x509.Certificate{URIs: []*url.URL{uri}}, key.Public(), time.Hour)
	if err != nil {
		return err
	}
	check := nodeid.Check{Roots: a.roots(), TrustDomain: trustDomain,
		Role: nodeid.Role(x509.ExtKeyUsageAny), Now: time.Now()}
	if _, err := check.Verify([]*x509.Certificate{leaf}); err != nil {
		return fmt.Errorf("trust domain %q cannot stand in a certificate: use a name like %q: %w",
			trustDomain, nodeid.DefaultTrustDomain, err)
	}
	return nil
}

// Open opens an authority. Its certificate file may hold further roots after its own: nodes then
// trust these too, which is how one root follows another.
func Open(dir string) (*Authority, error) {
	path := filepath.Join(dir, certFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no authority in %s: make one with `weft ca init --dir %s`", dir,
			dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the root: %w", err)
	}
	roots, err := nodeid.ParseBundle(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, err := readKey(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, err
	}
	root := roots[0]
	if public, ok := root.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok ||
		!public.Equal(key.Public()) {
		return nil, fmt.Errorf("%s does not belong to %s: the authority's own root must come first",
			filepath.Join(dir, keyFile), path)
	}
	if len(root.URIs) != 1 || root.URIs[0].Scheme != "spiffe" || root.URIs[0].Path != "" {
		return nil, fmt.Errorf("%s: its root names no trust domain (one URI spiffe://TRUSTDOMAIN)",
			path)
	}
	return &Authority{dir: dir, trustDomain: root.URIs[0].Host, root: root, bundle: roots, key: key,
		now: time.Now}, nil
}

// TrustDomain is that of the nodes that it signs for.
func (a *Authority) TrustDomain() string { return a.trustDomain }

// Root is its own certificate.
func (a *Authority) Root() *x509.Certificate { return a.root }

// Pin is the hash by which a joining node knows the root.
func (a *Authority) Pin() string { return hex.EncodeToString(pinOf(a.root)) }

func pinOf(cert *x509.Certificate) []byte {
	sum := sha256.Sum256(cert.Raw)
	return sum[:]
}

// Bundle is the roots that nodes shall trust, in PEM.
func (a *Authority) Bundle() []byte {
	var raw [][]byte
	for _, root := range a.bundle {
		raw = append(raw, root.Raw)
	}
	return encodeCerts(raw...)
}

func (a *Authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, root := range a.bundle {
		pool.AddCert(root)
	}
	return pool
}

// Identity is a node's certificate with its key and the roots, in PEM.
type Identity struct {
	Cert, Key, Bundle []byte
	Leaf              *x509.Certificate
}

// Issue makes a key for a node and signs its certificate. The key should then travel safely; Join
// makes it where it stays.
func (a *Authority) Issue(node string, valid time.Duration) (*Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of node %s: %w", node, err)
	}
	leaf, err := a.sign(node, key.Public(), valid, "issue", "")
	if err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return &Identity{Cert: encodeCerts(leaf.Raw), Key: keyPEM, Bundle: a.Bundle(), Leaf: leaf}, nil
}

// sign signs a node's certificate and notes it in the log: by which way it was asked for, and which
// one it renews.
func (a *Authority) sign(node string, public crypto.PublicKey, valid time.Duration, how,
	from string) (*x509.Certificate, error) {
	uri, err := nodeid.URI(a.trustDomain, node)
	if err != nil {
		return nil, err
	}
	if valid < time.Minute || valid > MaxValid {
		return nil, fmt.Errorf("a certificate that is valid for %v: give one minute to %v", valid,
			MaxValid)
	}
	if err := checkPublicKey(public); err != nil {
		return nil, err
	}
	leaf, err := a.signLeaf(&x509.Certificate{
		Subject:     pkix.Name{CommonName: node},
		URIs:        []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, public, valid)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of node %s: %w", node, err)
	}
	// A certificate that is in no log is not given out.
	if err := a.note(leaf, node, how, from); err != nil {
		return nil, err
	}
	return leaf, nil
}

func (a *Authority) signLeaf(template *x509.Certificate, public crypto.PublicKey,
	valid time.Duration) (*x509.Certificate, error) {
	now := a.now()
	if now.After(a.root.NotAfter) {
		return nil, fmt.Errorf("%w: the root, on %s", nodeid.ErrExpired,
			a.root.NotAfter.UTC().Format(time.RFC3339))
	}
	var err error
	if template.SerialNumber, err = newSerial(); err != nil {
		return nil, err
	}
	template.NotBefore, template.NotAfter = now.Add(-min(backdate, valid)), now.Add(valid)
	if template.NotAfter.After(a.root.NotAfter) {
		template.NotAfter = a.root.NotAfter
	}
	template.KeyUsage, template.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	raw, err := x509.CreateCertificate(rand.Reader, template, a.root, public, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(raw)
}

// checkPublicKey refuses keys that are too weak, or of a kind that TLS 1.3 does not sign with.
func checkPublicKey(public crypto.PublicKey) error {
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if key.N.BitLen() >= 2048 {
			return nil
		}
	}
	return fmt.Errorf("%w: its key is neither ECDSA P-256 or P-384, Ed25519, nor RSA of 2048 bits",
		ErrRequest)
}

func newSerial() (*big.Int, error) {
	number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return number.Add(number, big.NewInt(1)), nil
}

func encodeCerts(raw ...[]byte) []byte {
	var out bytes.Buffer
	for _, one := range raw {
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: one})
	}
	return out.Bytes()
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	defer clear(raw)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), nil
}

func readKey(path string) (crypto.Signer, error) {
	if err := nodeid.CheckKeyFile(path); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	defer clear(text)
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s holds no PRIVATE KEY in PEM", path)
	}
	defer clear(block.Bytes)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		// The parser's words could quote the file.
		return nil, fmt.Errorf("%s is not a key in PKCS #8", path)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T, which does not sign", path, parsed)
	}
	return key, nil
}
