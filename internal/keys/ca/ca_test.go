package ca

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
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
	return nodeid.Paths{Cert: filepath.Join(dir, "node.crt"), Key: filepath.Join(dir, "node.key"),
		Bundle: filepath.Join(dir, "ca.crt")}
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
	if err != nil || again.TrustDomain() != "td.test" || again.Pin() != a.Pin() ||
		len(a.Pin()) != 64 {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := Init(a.dir, "td.test", DefaultRootValid); err == nil ||
		!strings.Contains(err.Error(), "there already") {
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
		check := nodeid.Check{Roots: a.roots(), TrustDomain: "td.test", Role: role, Node: "n1",
			Now: time.Now()}
		if _, err := check.Verify([]*x509.Certificate{id.Leaf}); err != nil {
			t.Error(err)
		}
	}
	if life := time.Until(id.Leaf.NotAfter); life > DefaultValid ||
		life < DefaultValid-time.Minute {
		t.Errorf("valid for %v", life)
	}
	if id.Leaf.IsCA || len(id.Leaf.DNSNames)+len(id.Leaf.IPAddresses) != 0 {
		t.Errorf("more than a node: %+v", id.Leaf)
	}
	paths := pathsIn(t.TempDir())
	if err := id.Write(paths); err != nil {
		t.Fatal(err)
	}
	if mode(t, paths.Key) != 0o600 || mode(t, paths.Cert) != 0o644 ||
		mode(t, paths.Bundle) != 0o644 {
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
	}{{"", time.Hour}, {"A", time.Hour}, {"a/b", time.Hour}, {"n", 0}, {"n", -time.Hour},
		{"n", MaxValid + time.Hour}} {
		if _, err := a.Issue(c.node, c.valid); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
	log, err := a.Issued()
	if err != nil || len(log) != 1 || log[0].Node != "n1" || log[0].How != "issue" ||
		log[0].Serial != id.Leaf.SerialNumber.Text(16) {
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
	if mode(t, paths.Key) != 0o600 || mode(t, paths.Cert) != 0o644 ||
		mode(t, paths.Bundle) != 0o644 {
		t.Error("wrong modes")
	}
	files, err := nodeid.NewFiles(paths)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err := files.Certificate(t.Context()); err != nil || !cert.Leaf.Equal(first) ||
		nodeid.Inspect(cert.Leaf).ID != "spiffe://td.test/node/n1" {
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
	listener, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}})
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
	_, err = Join(t.Context(),
		JoinOptions{Server: listener.Addr().String(), Token: newToken(t, a, "n1"),
			Paths: pathsIn(t.TempDir())})
	if !errors.Is(err, ErrPin) {
		t.Errorf("%v", err)
	}
	if n := <-heard; n != 0 {
		t.Errorf("it was told %d bytes", n)
	}
}
