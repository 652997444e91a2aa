// Package kms starts counterparts of the KMS providers on loopback, for tests: moto for AWS (KMS,
// STS and IAM), Vault itself for Vault and OpenBao, and, since no emulator of theirs is to be had
// from a package registry, servers of our own for Google Cloud (gRPC on Google's own definitions, a
// metadata server) and for Azure (Key Vault and Entra ID). All of them do real cryptography and
// check real tokens; the real SDKs talk to them.
//
// Each comes with a fault to inject: denied, throttled, slow, gone.
package kms

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Counterpart is a KMS on loopback.
type Counterpart struct {
	// URL is what keys.kek has to be.
	URL string
	// Env is what a process needs in its environment to be the node that may use the key, beside
	// SSL_CERT_FILE from Trust.
	Env map[string]string
	// Rotate makes a new version of the key.
	Rotate func(testing.TB)
	// Disable, Deny, Throttle, Slow and Down cause a fault until undo is called; nil where the
	// counterpart cannot.
	Disable, Deny, Throttle, Slow, Down func(testing.TB) (undo func())
	// Limit has the KMS answer so many requests a second, and throttle the others, until undo is
	// called; nil where the counterpart cannot.
	Limit func(t testing.TB, perSecond int) (undo func())
	// Calls counts what reached the KMS since the start, by operation: encrypt and decrypt.
	Calls func() (encrypt, decrypt int)
}

// Setenv puts the counterpart's environment into the test's own, and takes out whatever credentials
// the developer's has.
func (c *Counterpart) Setenv(t testing.TB) {
	t.Helper()
	for _, name := range foreignVariables {
		t.Setenv(name, "")
		_ = os.Unsetenv(name)
	}
	for name, value := range c.Env {
		t.Setenv(name, value)
	}
}

// foreignVariables would lead SDKs to a developer's own cloud.
var foreignVariables = []string{
	"AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
	"AWS_DEFAULT_REGION", "AWS_CONFIG_FILE",
	"AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL",
	"GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "AZURE_CLIENT_SECRET",
	"AZURE_USERNAME", "AZURE_PASSWORD", "AZURE_CLIENT_CERTIFICATE_PATH", "VAULT_ADDR",
	"VAULT_TOKEN", "VAULT_NAMESPACE", "VAULT_SERVER_URL",
	"VAULT_SERVER_TOKEN", "VAULT_CACERT", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy",
}

// cacheDir is where what was downloaded or built is kept between runs. Nothing depends on it being
// there.
func cacheDir(t testing.TB) string {
	t.Helper()
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	dir := filepath.Join(base, "weft", "kms")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("make cache: %v", err)
	}
	return dir
}

// A switchable server can go away and come back at the same address.
type switchable struct {
	addr  string
	serve func(net.Listener) (stop func())
	mu    sync.Mutex
	stop  func()
}

func newSwitchable(t testing.TB, serve func(net.Listener) (stop func())) *switchable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	s := &switchable{addr: l.Addr().String(), serve: serve}
	s.stop = serve(l)
	t.Cleanup(func() { s.mu.Lock(); defer s.mu.Unlock(); s.stop() })
	return s
}

// down stops the server until undo is called.
func (s *switchable) down(t testing.TB) (undo func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	s.stop = func() {}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		l, err := listenAgain(s.addr)
		if err != nil {
			t.Errorf("come back at %s: %v", s.addr, err)
			return
		}
		s.stop = s.serve(l)
	})
}

// listenAgain takes back an address whose connections may still be going down.
func listenAgain(addr string) (net.Listener, error) {
	var errs []error
	for range 50 {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
		time.Sleep(20 * time.Millisecond)
	}
	return nil, errors.Join(errs[len(errs)-1])
}

func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
