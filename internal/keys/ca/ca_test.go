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
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
)

func newAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := Init(filepath.Join(t.TempDir(), "ca"), "td.test", DefaultRootValid)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// serve runs an authority's server and returns its address.
func serve(t testing.TB, a *Authority, valid time.Duration) string {
	t.Helper()
	server, err := a.NewServer(valid, nil)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(ctx, listener); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return listener.Addr().String()
}

func pathsIn(dir string) nodeid.Paths {
	return nodeid.Paths{Cert: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key"), Bundle: filepath.Join(dir, "ca.crt")}
}

func newToken(t testing.TB, a *Authority, node string) string {
	t.Helper()
	text, info, err := a.NewToken(node, DefaultTokenValid)
	if err != nil || info.Node != node {
		t.Fatal(info, err)
	}
	return text
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestInitAndOpen(t *testing.T) {
	a := newAuthority(t)
	if got := mode(t, filepath.Join(a.dir, "ca.key")); got != 0o600 {
		t.Errorf("the key has mode %o", got)
	}
	if got := mode(t, a.dir); got != 0o700 {
		t.Errorf("the directory has mode %o", got)
	}
	again, err := Open(a.dir)
	if err != nil || again.TrustDomain() != "td.test" || again.Pin() != a.Pin() || len(a.Pin()) != 64 {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := Init(a.dir, "td.test", DefaultRootValid); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("an authority was made over another: %v", err)
	}
	for _, wrong := range []string{"", "A", "a b", "spiffe://a", "10.0.0.1"} {
		if _, err := Init(filepath.Join(t.TempDir(), "x"), wrong, DefaultRootValid); err == nil {
			t.Errorf("trust domain %q is taken", wrong)
		}
	}
	if err := os.Chmod(filepath.Join(a.dir, "ca.key"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(a.dir); !errors.Is(err, nodeid.ErrKeyMode) {
		t.Errorf("a key that others may read: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "weft ca init") {
		t.Errorf("no authority: %v", err)
	}
	// Another authority's key.
	other := newAuthority(t)
	key, _ := os.ReadFile(filepath.Join(other.dir, "ca.key"))
	_ = os.WriteFile(filepath.Join(a.dir, "ca.key"), key, 0o600)
	_ = os.Chmod(filepath.Join(a.dir, "ca.key"), 0o600)
	if _, err := Open(a.dir); err == nil || !strings.Contains(err.Error(), "does not belong") {
		t.Errorf("another's key: %v", err)
	}
}

func TestIssue(t *testing.T) {
	a := newAuthority(t)
	id, err := a.Issue("n1", DefaultValid)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []nodeid.Role{nodeid.Client, nodeid.Server} {
		check := nodeid.Check{Roots: a.roots(), TrustDomain: "td.test", Role: role, Node: "n1", Now: time.Now()}
		if _, err := check.Verify([]*x509.Certificate{id.Leaf}); err != nil {
			t.Error(err)
		}
	}
	if life := time.Until(id.Leaf.NotAfter); life > DefaultValid || life < DefaultValid-time.Minute {
		t.Errorf("valid for %v", life)
	}
	if id.Leaf.IsCA || len(id.Leaf.DNSNames)+len(id.Leaf.IPAddresses) != 0 {
		t.Errorf("more than a node: %+v", id.Leaf)
	}
	paths := pathsIn(t.TempDir())
	if err := id.Write(paths); err != nil {
		t.Fatal(err)
	}
	if mode(t, paths.Key) != 0o600 || mode(t, paths.Cert) != 0o644 || mode(t, paths.Bundle) != 0o644 {
		t.Error("wrong modes")
	}
	files, err := nodeid.NewFiles(paths)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err := files.Certificate(t.Context()); err != nil || !cert.Leaf.Equal(id.Leaf) {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		node  string
		valid time.Duration
	}{{"", time.Hour}, {"A", time.Hour}, {"a/b", time.Hour}, {"n", 0}, {"n", -time.Hour}, {"n", MaxValid + time.Hour}} {
		if _, err := a.Issue(c.node, c.valid); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	log, err := a.Issued()
	if err != nil || len(log) != 1 || log[0].Node != "n1" || log[0].How != "issue" || log[0].Serial != id.Leaf.SerialNumber.Text(16) {
		t.Errorf("log %+v, %v", log, err)
	}
}

// A certificate never outlives its root, and an expired root signs nothing.
func TestRootsEnd(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "ca"), "td.test", 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	id, err := a.Issue("n1", DefaultValid)
	if err != nil || !id.Leaf.NotAfter.Equal(a.root.NotAfter) {
		t.Errorf("%v, %v", id.Leaf.NotAfter, err)
	}
	a.now = func() time.Time { return time.Now().Add(72 * time.Hour) }
	if _, err := a.Issue("n1", DefaultValid); !errors.Is(err, nodeid.ErrExpired) {
		t.Errorf("%v", err)
	}
}

func TestJoinAndRenew(t *testing.T) {
	a := newAuthority(t)
	server := serve(t, a, DefaultValid)
	paths := pathsIn(filepath.Join(t.TempDir(), "etc"))
	options := JoinOptions{Server: server, Token: newToken(t, a, "n1"), Paths: paths}
	first, err := Join(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if mode(t, paths.Key) != 0o600 || mode(t, paths.Cert) != 0o644 || mode(t, paths.Bundle) != 0o644 {
		t.Error("wrong modes")
	}
	files, err := nodeid.NewFiles(paths)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err := files.Certificate(t.Context()); err != nil || !cert.Leaf.Equal(first) || nodeid.Inspect(cert.Leaf).ID != "spiffe://td.test/node/n1" {
		t.Errorf("%v", err)
	}
	if got, err := RenewalServer(paths); got != server || err != nil {
		t.Errorf("renew at %q, %v", got, err)
	}
	// Not over what is there, unless told so; and never twice with one token.
	if _, err := Join(t.Context(), options); !errors.Is(err, ErrExists) {
		t.Errorf("over another: %v", err)
	}
	options.Force = true
	if _, err := Join(t.Context(), options); !errors.Is(err, ErrTokenUsed) {
		t.Errorf("token twice: %v", err)
	}

	key, _ := os.ReadFile(paths.Key)
	second, err := Renew(t.Context(), paths, "")
	if err != nil {
		t.Fatal(err)
	}
	fresh, _ := os.ReadFile(paths.Key)
	if second.Equal(first) || bytes.Equal(key, fresh) {
		t.Error("nothing new came")
	}
	if cert, err := files.Certificate(t.Context()); err != nil || !cert.Leaf.Equal(second) {
		t.Errorf("the source does not follow: %v", err)
	}
	log, err := a.Issued()
	if err != nil || len(log) != 2 || log[0].How != "join" || log[1].How != "renew" {
		t.Errorf("log %+v, %v", log, err)
	}
	tokens, err := a.Tokens()
	if err != nil || len(tokens) != 1 || tokens[0].Used == nil {
		t.Errorf("tokens %+v, %v", tokens, err)
	}
}

func TestTokensAreKeptAsHashes(t *testing.T) {
	a := newAuthority(t)
	text := newToken(t, a, "n1")
	parsed, err := parseToken(text)
	if err != nil || parsed.node != "n1" || !bytes.Equal(parsed.pin, pinOf(a.root)) {
		t.Fatalf("%+v, %v", parsed, err)
	}
	err = filepath.WalkDir(a.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		held, err := os.ReadFile(path)
		for _, form := range []string{text, string(parsed.secret), base64.RawURLEncoding.EncodeToString(parsed.secret)} {
			if bytes.Contains(held, []byte(form)) || strings.Contains(path, form) {
				t.Errorf("%s holds the token", path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTokensThatAreNone(t *testing.T) {
	a := newAuthority(t)
	good := newToken(t, a, "n1")
	for name, text := range map[string]string{
		"empty": "", "a word": "hunter2", "cut": good[:len(good)-3], "no prefix": strings.TrimPrefix(good, tokenPrefix),
		"one letter other": strings.Replace(good, good[20:21], map[bool]string{true: "B", false: "A"}[good[20:21] == "A"], 1),
		"longer":           good + "AA", "bad name": (&token{pin: make([]byte, 32), secret: make([]byte, 32), node: "N"}).String(),
	} {
		if _, err := parseToken(text); !errors.Is(err, ErrTokenMalformed) || (len(text) > 10 && strings.Contains(err.Error(), text)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := parseToken("  " + good + "\n"); err != nil {
		t.Errorf("with blanks around it: %v", err)
	}
	for _, valid := range []time.Duration{0, -time.Hour, 31 * 24 * time.Hour} {
		if _, _, err := a.NewToken("n1", valid); err == nil {
			t.Errorf("valid for %v is taken", valid)
		}
	}
	if _, _, err := a.NewToken("N1", time.Hour); err == nil {
		t.Error("a bad name is taken")
	}
}

func FuzzToken(f *testing.F) {
	f.Add((&token{pin: make([]byte, 32), secret: make([]byte, 32), node: "n1"}).String())
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := parseToken(text)
		if err == nil && parsed.String() != strings.TrimSpace(text) {
			// Only base64's spare bits may differ.
			if again, err := parseToken(parsed.String()); err != nil || again.node != parsed.node {
				t.Errorf("%q became %q", text, parsed)
			}
		}
	})
}

func TestTokenRefusals(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	server := serve(t, a, DefaultValid)
	join := func(token, server string) error {
		_, err := Join(t.Context(), JoinOptions{Server: server, Token: token, Paths: pathsIn(t.TempDir())})
		return err
	}
	// Another authority's token: its pin is not this server's root. The secret is not even said.
	if err := join(newToken(t, other, "n1"), server); !errors.Is(err, ErrPin) {
		t.Errorf("wrong pin: %v", err)
	}
	// One that this authority never made.
	if err := join((&token{pin: pinOf(a.root), secret: make([]byte, 32), node: "n1"}).String(), server); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("unknown: %v", err)
	}
	// The name in the token is only the node's word; the authority's own note counts.
	text := newToken(t, a, "n1")
	parsed, _ := parseToken(text)
	parsed.node = "n2"
	if err := join(parsed.String(), server); !errors.Is(err, nodeid.ErrWrongNode) {
		t.Errorf("wrong name: %v", err)
	}
	// That did not spend it.
	if err := join(text, server); err != nil {
		t.Errorf("after a wrong name: %v", err)
	}
	// Expired: by the authority's clock.
	late := newToken(t, other, "n1")
	other.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if err := join(late, serve(t, other, DefaultValid)); err == nil {
		t.Error("expired token is taken")
	}
	parsed, _ = parseToken(late)
	if _, err := other.checkToken(parsed.secret); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("expired: %v", err)
	}
	// Long after its end it is forgotten.
	other.now = func() time.Time { return time.Now().Add(30 * 24 * time.Hour) }
	newToken(t, other, "n9")
	if tokens, err := other.Tokens(); err != nil || len(tokens) != 1 || tokens[0].Node != "n9" {
		t.Errorf("tokens %+v, %v", tokens, err)
	}
	if err := join(text, "127.0.0.1:1"); err == nil || errors.Is(err, ErrPin) {
		t.Errorf("nobody there: %v", err)
	}
	for _, bad := range []string{"", "host:0", "host:99999", "host:x", "a:b:c:d:e:f:g:h:i:1x"} {
		if err := join(text, bad); err == nil {
			t.Errorf("server %q is taken", bad)
		}
	}
}

func TestExpiredTokenByName(t *testing.T) {
	a := newAuthority(t)
	text := newToken(t, a, "n1")
	// The record says when, so its end can be moved here without moving the server's clock and with it its certificate.
	parsed, _ := parseToken(text)
	path := filepath.Join(a.dir, tokenDir, hashSecret(parsed.secret))
	info, err := readToken(path)
	if err != nil {
		t.Fatal(err)
	}
	info.Expires = time.Now().Add(-time.Minute)
	record, _ := json.Marshal(info)
	if err := os.WriteFile(path, record, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Join(t.Context(), JoinOptions{Server: serve(t, a, DefaultValid), Token: text, Paths: pathsIn(t.TempDir())})
	if !errors.Is(err, ErrTokenExpired) {
		t.Errorf("%v", err)
	}
}

// Of many that use one token at once, one gets a certificate.
func TestTokenRace(t *testing.T) {
	a := newAuthority(t)
	server, text := serve(t, a, DefaultValid), newToken(t, a, "n1")
	var all sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 12 {
		dir := t.TempDir()
		all.Go(func() {
			_, err := Join(t.Context(), JoinOptions{Server: server, Token: text, Paths: pathsIn(dir)})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.Is(err, ErrTokenUsed) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won != 1 {
		t.Errorf("%d got a certificate", won)
	}
}

// A node's certificate chains to the same root, but its holder is not the authority's server.
func TestNodeCannotPoseAsTheAuthority(t *testing.T) {
	a := newAuthority(t)
	id, err := a.Issue("evil", DefaultValid)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(append(id.Cert, id.Bundle...), id.Key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	heard := make(chan int, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		n, _ := conn.Read(make([]byte, 100))
		heard <- n
	}()
	_, err = Join(t.Context(), JoinOptions{Server: listener.Addr().String(), Token: newToken(t, a, "n1"), Paths: pathsIn(t.TempDir())})
	if !errors.Is(err, ErrPin) {
		t.Errorf("%v", err)
	}
	if n := <-heard; n != 0 {
		t.Errorf("it was told %d bytes", n)
	}
}

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
	if _, err := Renew(t.Context(), write(good), ""); err == nil || !strings.Contains(err.Error(), "give --server") {
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
	if _, err := Renew(t.Context(), write(mustIssue(t, newAuthority(t))), server); !errors.Is(err, ErrPin) {
		t.Errorf("foreign: %v", err)
	}
	if err := ask(t, a, server, mustIssue(t, newAuthority(t)), "n1"); !errors.Is(err, nodeid.ErrForeign) {
		t.Errorf("foreign, at the server: %v", err)
	}
	if err := ask(t, a, server, good, "n2"); !errors.Is(err, nodeid.ErrWrongNode) {
		t.Errorf("another's name: %v", err)
	}
	if err := ask(t, a, server, nil, "n1"); !errors.Is(err, nodeid.ErrNoCertificate) {
		t.Errorf("no certificate: %v", err)
	}
}

// Only a node's newest certificate is renewed, so that who stole the key of an older one comes to an end.
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
	// The answer may have been lost, so the old one may ask again; then the other is not the newest any more.
	if _, err := Renew(t.Context(), stolen, server); err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(t.Context(), mine, server); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the node whose key was stolen: %v", err)
	}
	// It joins anew, and the thief is out.
	if _, err := Join(t.Context(), JoinOptions{Server: server, Token: newToken(t, a, "n1"), Paths: mine, Force: true}); err != nil {
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
	if err := late.renewable("n1", &x509.Certificate{SerialNumber: serial}); !errors.Is(err, ErrSuperseded) {
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
		raw, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: uris, DNSNames: []string{"www.example.com"}}, key)
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
		"P-256":          {good, nil},
		"Ed25519":        {request(ed, own), nil},
		"RSA 2048":       {request(rsaKey, own), nil},
		"P-224":          {request(p224, own), ErrRequest},
		"nothing":        {"", ErrRequest},
		"garbage":        {"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", ErrRequest},
		"bad signature":  {string(pem.EncodeToMemory(block)), ErrRequest},
		"no URI":         {request(p256, nil), ErrRequest},
		"two URIs":       {request(p256, append(uri("spiffe://td.test/node/n2"), own...)), ErrRequest},
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
	if _, err := Join(t.Context(), JoinOptions{Server: server, Token: newToken(t, a, "n1"), Paths: paths}); err != nil {
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
	if got, err := (&Renewer{Paths: foreign, Now: r.Now}).RenewIfDue(t.Context()); got || err != nil {
		t.Errorf("%t, %v", got, err)
	}
	// The authority is away: an error, and the old certificate stays.
	before, _ := os.ReadFile(paths.Cert)
	if got, err := (&Renewer{Paths: paths, Now: r.Now, Server: "127.0.0.1:1"}).RenewIfDue(t.Context()); got || err == nil {
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
	if _, err := Join(t.Context(), JoinOptions{Server: serve(t, both, DefaultValid), Token: newToken(t, both, "n1"), Paths: paths}); err != nil {
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
