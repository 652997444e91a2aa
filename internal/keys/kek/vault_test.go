package kek_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"weft.dev/weft/internal/keys/kek"
)

// transit is as much of Vault as logins need: it knows one token, keeps what it is given, and
// writes down who asked for what.
type transit struct {
	t      *testing.T
	logins []string
	seen   []string
}

func (s *transit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	var body map[string]string
	if err := json.Unmarshal(raw, &body); err != nil {
		s.t.Errorf("%s: %v", r.URL.Path, err)
	}
	token := r.Header.Get("X-Vault-Token")
	s.seen = append(s.seen, r.URL.Path+" "+r.Header.Get("X-Vault-Namespace"))
	switch {
	case r.URL.Path == "/v1/auth/k8s-b/login":
		s.logins = append(s.logins, body["role"]+" "+body["jwt"]+" "+token)
		_, _ = io.WriteString(w, `{"auth":{"client_token":"s.good","lease_duration":3600}}`)
	case token != "s.good":
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"errors":["permission denied"]}`)
	case body["associated_data"] == "" || body["context"] != body["associated_data"]:
		w.WriteHeader(http.StatusBadRequest)
	default:
		_, _ = io.WriteString(w, `{"data":{"ciphertext":"vault:v9:`+body["plaintext"]+`"}}`)
	}
}

// The parameters of a login reach the server, and one login serves several calls.
func TestVaultKubernetesLogin(t *testing.T) {
	cleanEnv(t)
	s := &transit{t: t}
	server := httptest.NewServer(s)
	defer server.Close()
	jwt := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(jwt, []byte("a.b.c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := kek.Open(t.Context(),
		"hashivault://k?engine=team/transit&namespace=net&auth=kubernetes&auth_mount=k8s-b&role=weft&jwt_file="+jwt+"&endpoint="+server.URL, kek.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, version, err := k.Wrap(t.Context(), make([]byte, kek.DEKSize),
			kek.Binding{Cluster: "c", Epoch: 1})
		if err != nil || version != "v9" {
			t.Fatalf("version %q, %v", version, err)
		}
	}
	if len(s.logins) != 1 || s.logins[0] != "weft a.b.c " {
		t.Errorf("logins: %q", s.logins)
	}
	for i, want := range []string{"/v1/auth/k8s-b/login net", "/v1/team/transit/encrypt/k net",
		"/v1/team/transit/encrypt/k net"} {
		if s.seen[i] != want {
			t.Errorf("call %d: want %q, got %q", i, want, s.seen[i])
		}
	}
}
