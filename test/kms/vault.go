package kms

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/vault/api"

	"weft.dev/weft/test/prebuilt"
)

const (
	vaultKey     = "weft"
	vaultSubject = "system:serviceaccount:weft:weft-agent"
	vaultPolicy  = `path "transit/encrypt/weft" { capabilities = ["update"] }
path "transit/decrypt/weft" { capabilities = ["update"] }`
)

// Vault is Vault itself, with what tests of it alone need.
type Vault struct {
	*Counterpart
	// Admin may do everything.
	Admin *api.Client
	// SignJWT makes a service account's token for a subject and an audience.
	SignJWT func(testing.TB, string, string) string
}

// StartVault starts Vault in memory: its core, its transit engine, its JWT logins. This node logs
// in with its projected service account token. Building Vault takes minutes, so that it is built
// only if WEFT_TEST_KMS is set, and kept in the cache.
func StartVault(t testing.TB) *Vault {
	t.Helper()
	admin := startVaultServer(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	v := &Vault{Admin: admin,
		SignJWT: func(t testing.TB, sub, aud string) string { return signJWT(t, key, sub, aud) }}
	v.setUp(t, key)
	f := newFaults(proxyTo(t, admin.Address()), vaultOp)
	front := serveHTTP(t, f, nil)
	v.Counterpart = &Counterpart{
		URL: "hashivault://" + vaultKey + "?auth=jwt&role=weft&jwt_file=" +
			writeFile(t, "vault-token", v.SignJWT(t, vaultSubject, "vault")),
		Env: map[string]string{"VAULT_ADDR": "http://" + front.addr, "HOME": t.TempDir()},
		Rotate: func(t testing.TB) {
			v.write(t, "transit/keys/"+vaultKey+"/rotate", nil)
		},
		Deny: func(t testing.TB) func() {
			v.write(t, "sys/policies/acl/weft-node",
				map[string]any{"policy": `path "cubbyhole/*" { capabilities = ["read"] }`})
			return func() { v.write(t, "sys/policies/acl/weft-node", map[string]any{"policy": vaultPolicy}) }
		},
		Throttle: v.throttle,
		Slow:     func(testing.TB) func() { return f.set(slowFault) },
		Down:     front.down,
		Calls:    f.counts,
	}
	return v
}

func vaultOp(r *http.Request) string {
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/transit/encrypt/"):
		return "encrypt"
	case strings.HasPrefix(r.URL.Path, "/v1/transit/decrypt/"):
		return "decrypt"
	}
	return ""
}

func (v *Vault) setUp(t testing.TB, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	public := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	v.write(t, "sys/mounts/transit", map[string]any{"type": "transit"})
	v.write(t, "transit/keys/"+vaultKey, nil)
	v.write(t, "sys/policies/acl/weft-node", map[string]any{"policy": vaultPolicy})
	v.write(t, "sys/auth/jwt", map[string]any{"type": "jwt"})
	v.write(t, "auth/jwt/config", map[string]any{"jwt_validation_pubkeys": []string{public}})
	v.write(t, "auth/jwt/role/weft", map[string]any{
		"role_type": "jwt", "user_claim": "sub", "bound_audiences": []string{"vault"},
		"bound_subject":  vaultSubject,
		"token_policies": []string{"weft-node"}, "token_ttl": "1h",
	})
}

func (v *Vault) write(t testing.TB, path string, data map[string]any) {
	t.Helper()
	if _, err := v.Admin.Logical().Write(path, data); err != nil {
		t.Fatalf("vault write %s: %v", path, err)
	}
}

// throttle sets a rate limit quota of Vault's own that lets nothing more through.
func (v *Vault) throttle(t testing.TB) func() {
	v.write(t, "sys/quotas/rate-limit/weft",
		map[string]any{"path": "transit/", "rate": 0.001, "interval": "1h"})
	// The quota starts with one request to give away.
	_, _ = v.Admin.Logical().Write("transit/encrypt/"+vaultKey, map[string]any{"plaintext": ""})
	return func() {
		if _, err := v.Admin.Logical().Delete("sys/quotas/rate-limit/weft"); err != nil {
			t.Errorf("delete quota: %v", err)
		}
	}
}

func signJWT(t testing.TB, key *ecdsa.PrivateKey, subject, audience string) string {
	t.Helper()
	now := time.Now()
	claims, err := json.Marshal(map[string]any{"iss": "weft-test", "sub": subject, "aud": audience,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." +
		base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// startVaultServer runs vaultdev until the test ends.
func startVaultServer(t testing.TB) *api.Client {
	t.Helper()
	cmd := exec.Command(vaultBinary(t))
	var log lockedBuffer
	cmd.Stderr = &log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start Vault: %v", err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var hello struct{ Address, Token string }
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &hello) != nil {
		t.Fatalf("Vault did not start: %v: %s", err, log.String())
	}
	client, err := api.NewClient(&api.Config{Address: hello.Address})
	if err != nil {
		t.Fatal(err)
	}
	client.SetToken(hello.Token)
	return client
}

// vaultBinary builds vaultdev, unless the cache has it for the very same source and versions.
func vaultBinary(t testing.TB) string {
	t.Helper()
	_, self, _, _ := runtime.Caller(0)
	vault := prebuilt.Program{
		Name: "vaultdev", Directory: "kms",
		Source: filepath.Join(filepath.Dir(self), "testdata", "vaultdev"),
		Files:  []string{"main.go", "go.mod", "go.sum"},
		Build:  []string{"-ldflags=-s -w", "."}, GoFlags: "-mod=mod -buildvcs=false",
		Fetch: "scripts/fetch kms",
	}
	if _, err := os.Stat(vault.Path(t)); err != nil && os.Getenv("WEFT_TEST_KMS") == "" {
		t.Skip("needs Vault, which takes minutes to build from its module: run it once with WEFT_TEST_KMS=1")
	}
	return vault.Binary(t)
}
