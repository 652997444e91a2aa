package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/ca"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/statefile"
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
		"trustDomain": trustDomain, "cluster": s.Name,
		"kek": "file://" + filepath.Join(dir, kekFile),
		"certificates": map[string]any{
			"cert": filepath.Join(dir, certFile), "key": filepath.Join(dir, keyFile),
			"bundle": filepath.Join(dir, bundleFile),
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
		if err := statefile.WriteMode(filepath.Join(dir, kekFile), secret, 0o600); err != nil {
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
		Cert: filepath.Join(dir, certFile), Key: filepath.Join(dir, keyFile),
		Bundle: filepath.Join(dir, bundleFile),
	})
}

// identitiesTimeout bounds the wait for what is a tenth of a second on a machine with time.
const identitiesTimeout = 30 * time.Second

// awaitIdentities waits until every agent knows who lives on the other nodes: until then it refuses
// what they seal, and a program that counts packets would count that. Agents that do not answer are
// not waited for.
func (l *Lab) awaitIdentities(ctx context.Context) {
	st, err := l.st.read()
	if err != nil || !st.spec.Encrypted() {
		return
	}
	want := map[string]int{}
	seen := map[[3]string]bool{}
	for _, p := range st.spec.Pods {
		if who := [3]string{p.Node, p.Namespace, p.ServiceAccount}; !seen[who] &&
			!st.spec.node(p.Node).Bare() {
			seen[who] = true
			want[p.Node]++
		}
	}
	ctx, cancel := context.WithTimeout(ctx, identitiesTimeout)
	defer cancel()
	for _, n := range l.Nodes() {
		for !n.Bare && n.PID() != 0 && !n.knows(ctx, want) {
			select {
			case <-ctx.Done():
				l.log().Warn("an agent does not know all identities yet", "node", n.Name)
				return
			case <-time.After(pollEvery):
			}
		}
	}
}

// knows says whether the agent has told its datapath of that many identities on each other node;
// true, too, when there is nothing to learn from it.
func (n *Node) knows(ctx context.Context, want map[string]int) bool {
	resp, err := n.get(ctx, "/v1/encrypt")
	if err != nil {
		return true
	}
	defer resp.Body.Close()
	var got struct {
		Mode  string
		Peers []struct {
			Node       string
			Identities int
		}
	}
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&got) != nil ||
		got.Mode == EncryptionOff {
		return true
	}
	for _, peer := range got.Peers {
		if peer.Identities < want[peer.Node] {
			return false
		}
	}
	return true
}
