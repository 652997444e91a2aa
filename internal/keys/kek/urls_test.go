package kek_test

import (
	"errors"
	"strings"
	"testing"

	"weft.dev/weft/internal/keys/kek"
)

// cleanEnv hides a developer's own cloud.
func cleanEnv(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "VAULT_ADDR",
		"VAULT_SERVER_URL", "VAULT_TOKEN", "VAULT_AGENT_ADDR"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
}

const gcpKey = "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k"

// URLs as gocloud.dev/secrets writes them, and this package's own parameters.
func TestProviderURLs(t *testing.T) {
	cleanEnv(t)
	for _, c := range []struct{ url, public string }{
		{"awskms://1234abcd-12ab-34cd-56ef-1234567890ab?region=eu-central-1",
			"awskms://1234abcd-12ab-34cd-56ef-1234567890ab"},
		{"awskms:///arn:aws:kms:eu-central-1:123456789012:key/1234abcd",
			"awskms:///arn:aws:kms:eu-central-1:123456789012:key/1234abcd"},
		{"awskms:///alias/weft?region=eu-central-1&context_team=net&fips=true",
			"awskms:///alias/weft"},
		{"awskms:///alias/weft?region=eu-central-1&endpoint=https%3A%2F%2Fvpce-1.kms.eu-central-1.vpce.amazonaws.com", "awskms:///alias/weft"},
		{gcpKey, gcpKey},
		{gcpKey + "?endpoint=https://cloudkms.europe-west3.rep.googleapis.com", gcpKey},
		{"azurekeyvault://v.vault.azure.net/keys/k", "azurekeyvault://v.vault.azure.net/keys/k"},
		{"azurekeyvault://v.vault.azure.net/keys/k/0123?algorithm=RSA-OAEP-256",
			"azurekeyvault://v.vault.azure.net/keys/k/0123"},
		{"azurekeyvault://h.managedhsm.azure.net/keys/k?algorithm=A256KW",
			"azurekeyvault://h.managedhsm.azure.net/keys/k"},
		{"hashivault://k?endpoint=https://vault:8200&auth=kubernetes&role=weft&engine=weft/transit",
			"hashivault://k"},
		{"hashivault://k?endpoint=https://vault:8200&auth=jwt&jwt_file=/run/token&auth_mount=jwt-b",
			"hashivault://k"},
	} {
		k, err := kek.Open(t.Context(), c.url, kek.Options{})
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if k.URL() != c.public {
			t.Errorf("%s: URL is %s", c.url, k.URL())
		}
		if err := k.Close(); err != nil {
			t.Errorf("%s: %v", c.url, err)
		}
	}
}

func TestProviderURLsRefused(t *testing.T) {
	cleanEnv(t)
	for _, c := range []struct {
		url, want string
		kind      error
	}{
		{"awskms://", "names no key", kek.ErrConfig},
		{"awskms:///alias/weft", "names no region", kek.ErrConfig},
		{"awskms:///alias/weft?region=eu-central-1&colour=red", `"colour"`, kek.ErrConfig},
		{"awskms:///alias/weft?region=eu-central-1&region=us-east-1", "2 values", kek.ErrConfig},
		{"awskms:///alias/weft?region=eu-central-1&context_weft-epoch=7", "context_weft-epoch",
			kek.ErrConfig},
		{"awskms:///alias/weft?region=eu-central-1&fips=perhaps", "fips", kek.ErrConfig},
		{"awskms:///alias/weft?region=eu-central-1&endpoint=http://kms.example.com", "cleartext",
			kek.ErrConfig},
		{"awskms:///alias/weft?region=eu-central-1&endpoint=kms.example.com", "https URL",
			kek.ErrConfig},
		{"awskms:///arn:aws:s3:::bucket", "ARN of a KMS key", kek.ErrConfig},
		{"awskms:///arn:aws:kms:eu-central-1:123456789012:key/1?region=us-east-1", "eu-central-1",
			kek.ErrWrongRegion},
		{"gcpkms://projects/p/locations/l/keyRings/r", "no Cloud KMS key", kek.ErrConfig},
		{gcpKey + "/cryptoKeyVersions/1", "no Cloud KMS key", kek.ErrConfig},
		{gcpKey + "?endpoint=http://127.0.0.1:1", "not fit", kek.ErrConfig},
		{"azurekeyvault://v.vault.azure.net/secrets/k", "no Key Vault key", kek.ErrConfig},
		{"azurekeyvault://v.vault.azure.net/keys/k?algorithm=RSA1_5", "RSA1_5", kek.ErrConfig},
		{"azurekeyvault://v.vault.azure.net/keys/k?disable_instance_discovery=maybe", "maybe",
			kek.ErrConfig},
		{"hashivault://k", "names no server", kek.ErrConfig},
		{"hashivault://?endpoint=https://vault", "no transit key", kek.ErrConfig},
		{"hashivault://k/v?endpoint=https://vault", "no transit key", kek.ErrConfig},
		{"hashivault://k?endpoint=http://vault:8200", "cleartext", kek.ErrConfig},
		{"hashivault://k?endpoint=https://vault&auth=ldap", "ldap", kek.ErrConfig},
		{"hashivault://k?endpoint=https://vault&auth=kubernetes", "no role", kek.ErrConfig},
		{"hashivault://k?endpoint=https://vault&role=weft", "no auth", kek.ErrConfig},
		{"hashivault://k?endpoint=https://vault&auth=jwt&token_file=/t", "token_file",
			kek.ErrConfig},
		{"hashivault://k?endpoint=https://user:secret@vault", "user or password", kek.ErrConfig},
	} {
		_, err := kek.Open(t.Context(), c.url, kek.Options{})
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "(fix: ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: want %q about %q with a fix, got %v", c.url, c.kind, c.want, err)
		}
	}
}
