package lab

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/keys/nodeid"
)

func TestKeys(t *testing.T) {
	spec := agentSpec("keys")
	l := upAgents(t, spec)
	var secrets [][]byte
	for _, n := range l.Nodes() {
		cfg, err := config.Load(n.ConfigFile)
		if err != nil {
			t.Fatal(err)
		}
		c := cfg.Keys.Certificates
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		bundle, err := os.ReadFile(c.Bundle)
		if err != nil || !roots.AppendCertsFromPEM(bundle) {
			t.Fatalf("bundle %s: %v", bundle, err)
		}
		check := nodeid.Check{Roots: roots, TrustDomain: cfg.Keys.TrustDomain, Role: nodeid.Server,
			Node: n.Name, Now: time.Now()}
		if _, err := check.Verify([]*x509.Certificate{pair.Leaf}); err != nil {
			t.Errorf("node %s: %v", n.Name, err)
		}
		secret, err := os.ReadFile(filepath.Join(keysDir(spec.Name, n.Name), kekFile))
		if err != nil || len(secret) == 0 ||
			cfg.Keys.KEK != "file://"+filepath.Join(keysDir(spec.Name, n.Name), kekFile) {
			t.Errorf("key-encryption key of %s: %v", cfg.Keys.KEK, err)
		}
		secrets = append(secrets, secret)
	}
	if !bytes.Equal(secrets[0], secrets[1]) {
		t.Error("the nodes' key-encryption keys differ")
	}
	for _, dir := range []string{authorityDir(spec.Name), keysDir(spec.Name, "n0"),
		keysDir(spec.Name, "n1")} {
		onlyRoot(t, dir)
	}
}

// onlyRoot fails unless a directory, and what is secret in it, is closed to others.
func onlyRoot(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if public := filepath.Ext(path) == ".crt"; err == nil && !public &&
			info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
