package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"weft.dev/weft/internal/keys/ca"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/nodeid"
)

// Names of what an agent needs to seal packets, in its node's directory of keys.
const (
	certFile   = "node.crt"
	keyFile    = "node.key"
	bundleFile = "ca.crt"
	kekFile    = "kek"
)

// trustDomain is that of every lab's certificates.
const trustDomain = "weft.lab"

// keysConfig is the keys section of an agent's configuration.
func keysConfig(s *Spec, n NodeSpec) map[string]any {
	dir := keysDir(s.Name, n.Name)
	return map[string]any{
		"trustDomain": trustDomain, "cluster": s.Name, "kek": "file://" + filepath.Join(dir, kekFile),
		"certificates": map[string]any{
			"cert": filepath.Join(dir, certFile), "key": filepath.Join(dir, keyFile), "bundle": filepath.Join(dir, bundleFile),
		},
	}
}

// makeKeys makes the lab's authority, a certificate for each agent, and one key-encryption key
// that all have a copy of. Only root can read what is secret.
func (l *Lab) makeKeys(_ context.Context, s *Spec) error {
	if !s.Encrypted() || !slices.ContainsFunc(s.Nodes, func(n NodeSpec) bool { return !n.Bare() }) {
		return nil
	}
	authority, err := ca.Init(authorityDir(s.Name), trustDomain, ca.DefaultRootValid)
	if err != nil {
		return fmt.Errorf("make the lab's authority: %w", err)
	}
	shared := filepath.Join(authorityDir(s.Name), kekFile)
	if _, err := kek.CreateKeyFile(shared); err != nil {
		return fmt.Errorf("make the lab's key-encryption key: %w", err)
	}
	secret, err := os.ReadFile(shared)
	if err != nil {
		return fmt.Errorf("read the lab's key-encryption key: %w", err)
	}
	defer clear(secret)
	for _, n := range s.Nodes {
		if n.Bare() {
			continue
		}
		dir := keysDir(s.Name, n.Name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create directory of keys: %w", err)
		}
		if err := issue(authority, n.Name, dir); err != nil {
			return fmt.Errorf("certificate of node %s: %w", n.Name, err)
		}
		if err := writeFile(filepath.Join(dir, kekFile), secret, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// issue gives a node a certificate and the authority's own.
func issue(authority *ca.Authority, node, dir string) error {
	identity, err := authority.Issue(node, ca.DefaultValid)
	if err != nil {
		return err
	}
	defer identity.Zero()
	return identity.Write(nodeid.Paths{
		Cert: filepath.Join(dir, certFile), Key: filepath.Join(dir, keyFile), Bundle: filepath.Join(dir, bundleFile),
	})
}
