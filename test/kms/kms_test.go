package kms_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/kek/kektest"
	"weft.dev/weft/test/kms"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weft-kms-")
	if err == nil {
		var bundle string
		if bundle, err = kms.Trust(dir); err == nil {
			err = os.Setenv("SSL_CERT_FILE", bundle)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// target makes the conformance table's hooks from a counterpart's.
func target(c *kms.Counterpart, principal string, skip map[string]string) kektest.Target {
	hook := func(f func(testing.TB) func()) func(*testing.T) func() {
		if f == nil {
			return nil
		}
		return func(t *testing.T) func() { return f(t) }
	}
	return kektest.Target{
		Open: func(t *testing.T, opts kek.Options) kek.KEK {
			k, err := kek.Open(t.Context(), c.URL, opts)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { k.Close() })
			return k
		},
		Rotate: func(t *testing.T) { c.Rotate(t) }, Principal: principal, Skip: skip,
		Disable: hook(c.Disable), Deny: hook(c.Deny), Throttle: hook(c.Throttle),
		Slow: hook(c.Slow), Down: hook(c.Down),
	}
}

func TestGoogle(t *testing.T) {
	c := kms.StartGoogle(t)
	c.Setenv(t)
	kektest.Run(t, target(c, "weft-node@loom", nil))
}

func TestAzure(t *testing.T) {
	c := kms.StartAzure(t)
	c.Setenv(t)
	kektest.Run(t, target(c, "object bbbbbbbb", nil))
}

func TestAWS(t *testing.T) {
	c := kms.StartAWS(t)
	c.Setenv(t)
	kektest.Run(t, target(c, "assumed-role/weft-node/node-a", nil))
}

func TestVault(t *testing.T) {
	v := kms.StartVault(t)
	v.Setenv(t)
	kektest.Run(t,
		target(v.Counterpart, "weft-agent",
			map[string]string{"disabled key": "does not apply: Vault has no switch for a key, see TestVaultKeyWithdrawn"}))
}

// Vault's ways to take a key away: its older versions by policy, then the whole key.
func TestVaultKeyWithdrawn(t *testing.T) {
	v := kms.StartVault(t)
	v.Setenv(t)
	k, err := kek.Open(t.Context(), v.URL, kek.Options{RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	bind := kek.Binding{Cluster: "c", Epoch: 1}
	blob, _, err := k.Wrap(t.Context(), make([]byte, kek.DEKSize), bind)
	if err != nil {
		t.Fatal(err)
	}
	v.Rotate(t)
	for _, step := range []struct {
		path string
		data map[string]any
		want error
	}{
		{"transit/keys/weft/config",
			map[string]any{"min_decryption_version": 2, "deletion_allowed": true}, kek.ErrDisabled},
		{"", nil, kek.ErrNotFound},
	} {
		if step.path == "" {
			_, err = v.Admin.Logical().Delete("transit/keys/weft")
		} else {
			_, err = v.Admin.Logical().Write(step.path, step.data)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Unwrap(t.Context(), blob, bind); !errors.Is(err, step.want) {
			t.Errorf("want %v, got %v", step.want, err)
		}
	}
}

// Logins: a token that is revoked is replaced at once, one that the role does not admit is refused
// as credentials.
func TestVaultLogin(t *testing.T) {
	v := kms.StartVault(t)
	v.Setenv(t)
	jwt := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(jwt, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k, err := kek.Open(t.Context(), "hashivault://weft?auth=jwt&role=weft&jwt_file="+jwt,
		kek.Options{RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	bind := kek.Binding{Cluster: "c", Epoch: 1}
	try := func(want error) {
		t.Helper()
		if _, _, err := k.Wrap(t.Context(), make([]byte, kek.DEKSize), bind); !errors.Is(err,
			want) {
			t.Errorf("want %v, got %v", want, err)
		} else if err != nil {
			t.Log(err)
		}
	}
	try(kek.ErrCredentials) // no file
	write(" ")
	try(kek.ErrCredentials)
	write(v.SignJWT(t, "system:serviceaccount:weft:somebody-else", "vault"))
	try(kek.ErrCredentials)
	write(v.SignJWT(t, "system:serviceaccount:weft:weft-agent", "elsewhere"))
	try(kek.ErrCredentials)
	write(v.SignJWT(t, "system:serviceaccount:weft:weft-agent", "vault"))
	try(nil)
	if _, err := v.Admin.Logical().Write("sys/leases/revoke-force/auth/jwt/login",
		nil); err != nil {
		t.Fatal(err)
	}
	try(nil)
}
