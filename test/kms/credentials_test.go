package kms_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/test/kms"
)

// Everything that goes wrong before the KMS itself is asked has its name, too, and mends without a
// restart: a change of the environment that takes the credentials away, and what must come of it.
type credentialsCase struct {
	name string
	env  map[string]string
	want error
}

func runCredentials(t *testing.T, c *kms.Counterpart, cases []credentialsCase) {
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			c.Setenv(t)
			for name, value := range tc.env {
				t.Setenv(name, value)
				if value == "" {
					_ = os.Unsetenv(name)
				}
			}
			k, err := kek.Open(t.Context(), c.URL,
				kek.Options{RetryFor: -1, AttemptTimeout: 5 * time.Second})
			if err == nil {
				defer k.Close()
				_, _, err = k.Wrap(t.Context(), make([]byte, kek.DEKSize),
					kek.Binding{Cluster: "c", Epoch: 1})
			}
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "(fix: ") {
				t.Errorf("want %q with a fix, got %v", tc.want, err)
			}
			t.Log(err)
		})
	}
}

// nobody is an address where nothing listens.
const nobody = "127.0.0.1:9"

func missing(t *testing.T) string { return filepath.Join(t.TempDir(), "missing") }

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAWSCredentials(t *testing.T) {
	c := kms.StartAWS(t)
	runCredentials(t, c, []credentialsCase{
		{"none", map[string]string{"AWS_ROLE_ARN": "", "AWS_WEB_IDENTITY_TOKEN_FILE": ""},
			kek.ErrCredentials},
		{"no token file", map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": missing(t)},
			kek.ErrCredentials},
		{"STS gone", map[string]string{"AWS_ENDPOINT_URL_STS": "http://" + nobody},
			kek.ErrUnreachable},
	})
	t.Run("wrong region", func(t *testing.T) {
		c.Setenv(t)
		elsewhere, err := kek.Open(t.Context(),
			strings.Replace(c.URL, "eu-central-1", "us-east-1", 1), kek.Options{RetryFor: -1})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = elsewhere.Wrap(t.Context(), make([]byte, kek.DEKSize),
			kek.Binding{Cluster: "c", Epoch: 1})
		if !errors.Is(err, kek.ErrNotFound) || !strings.Contains(err.Error(), "region") {
			t.Errorf("want ErrNotFound that speaks of the region, got %v", err)
		}
	})
}

func TestGoogleCredentials(t *testing.T) {
	runCredentials(t, kms.StartGoogle(t), []credentialsCase{
		{"a file that is not there",
			map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": missing(t)}, kek.ErrCredentials},
		{"a file that is none", map[string]string{"GOOGLE_APPLICATION_CREDENTIALS": file(t, "{}")},
			kek.ErrCredentials},
		{"metadata server gone", map[string]string{"GCE_METADATA_HOST": nobody},
			kek.ErrUnreachable},
	})
}

func TestAzureCredentials(t *testing.T) {
	runCredentials(t, kms.StartAzure(t), []credentialsCase{
		{"no token file", map[string]string{"AZURE_FEDERATED_TOKEN_FILE": missing(t)},
			kek.ErrCredentials},
		{"another pod's token",
			map[string]string{"AZURE_FEDERATED_TOKEN_FILE": file(t, "somebody else's")},
			kek.ErrCredentials},
		{"Entra ID gone", map[string]string{"AZURE_AUTHORITY_HOST": "https://" + nobody + "/"},
			kek.ErrUnreachable},
	})
}
