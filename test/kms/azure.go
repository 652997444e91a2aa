package kms

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	azureVault  = "https://vault.azure.net"
	azureTenant = "11111111-2222-3333-4444-555555555555"
	azureClient = "66666666-7777-8888-9999-aaaaaaaaaaaa"
	azureObject = "bbbbbbbb-cccc-dddd-eeee-ffffffffffff"
	azureKey    = "weft-kek"
)

// azure is Key Vault for one RSA key and Entra ID for one workload identity.
type azure struct {
	t         testing.TB
	secret    []byte // signs tokens
	assertion string // what the projected service account token must be

	mu       sync.Mutex
	base     string // of Entra ID
	versions []azureVersion
	denied   bool
}

type azureVersion struct {
	id      string
	key     *rsa.PrivateKey
	enabled bool
}

// StartAzure starts Key Vault and Entra ID; this node has a workload identity, as on AKS: a
// projected token that it exchanges for one of Entra ID.
func StartAzure(t testing.TB) *Counterpart {
	t.Helper()
	a := &azure{t: t, secret: make([]byte, 32), assertion: "projected-service-account-token"}
	_, _ = rand.Read(a.secret)
	a.rotate(t)
	config, err := serverTLS()
	if err != nil {
		t.Fatal(err)
	}
	entra := serveHTTP(t, http.HandlerFunc(a.entra), config.Clone())
	a.base = "https://" + entra.addr
	f := newFaults(http.HandlerFunc(a.vault), azureOp)
	vault := serveHTTP(t, f, config.Clone())
	return &Counterpart{
		URL: "azurekeyvault://loom.vault.azure.net/keys/" + azureKey +
			"?disable_instance_discovery=true&endpoint=https://" + vault.addr,
		Env: map[string]string{
			"AZURE_TENANT_ID": azureTenant, "AZURE_CLIENT_ID": azureClient,
			"AZURE_AUTHORITY_HOST":       a.base + "/",
			"AZURE_FEDERATED_TOKEN_FILE": writeFile(t, "azure-token", a.assertion),
			"HOME":                       t.TempDir(),
		},
		Rotate: a.rotate,
		Disable: func(testing.TB) func() {
			a.change(func() { a.enable(false) })
			return func() { a.change(func() { a.enable(true) }) }
		},
		Deny: func(testing.TB) func() {
			a.change(func() { a.denied = true })
			return func() { a.change(func() { a.denied = false }) }
		},
		Throttle: func(testing.TB) func() { return f.set(azureThrottled) },
		Limit:    func(_ testing.TB, perSecond int) func() { return f.set(limit(perSecond, azureThrottled)) },
		Slow:     func(testing.TB) func() { return f.set(slowFault) },
		Down:     vault.down,
		Calls:    f.counts,
	}
}

var azureThrottled = answer(http.StatusTooManyRequests,
	map[string]string{"Retry-After": "1", "Content-Type": "application/json"},
	`{"error":{"code":"Throttled","message":"Request was not processed because too many requests were received. Reason: VaultRequestTypeLimitReached"}}`)

func azureOp(r *http.Request) string {
	switch {
	case r.Header.Get("Authorization") == "":
		return "" // only asks where to get a token
	case strings.HasSuffix(r.URL.Path, "/wrapkey"):
		return "encrypt"
	case strings.HasSuffix(r.URL.Path, "/unwrapkey"):
		return "decrypt"
	}
	return ""
}

func (a *azure) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *azure) enable(on bool) {
	for i := range a.versions {
		a.versions[i].enabled = on
	}
}

func (a *azure) rotate(t testing.TB) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	a.change(func() {
		a.versions = append(a.versions,
			azureVersion{id: hex.EncodeToString(id), key: key, enabled: true})
	})
}

// entra answers the tenant's discovery and exchanges the projected token.
func (a *azure) entra(w http.ResponseWriter, r *http.Request) {
	tenant := a.base + "/" + azureTenant
	switch r.URL.Path {
	case "/" + azureTenant + "/v2.0/.well-known/openid-configuration":
		writeJSON(w, http.StatusOK, map[string]any{
			"token_endpoint":         tenant + "/oauth2/v2.0/token",
			"authorization_endpoint": tenant + "/oauth2/v2.0/authorize", "issuer": tenant + "/v2.0",
		})
	case "/" + azureTenant + "/oauth2/v2.0/token":
		ok := r.ParseForm() == nil && strings.HasPrefix(r.Form.Get("scope"), azureVault+"/.default")
		if !ok || r.Form.Get("client_id") != azureClient ||
			r.Form.Get("client_assertion") != a.assertion {
			writeJSON(w, http.StatusUnauthorized, map[string]any{
				"error":             "invalid_client",
				"error_description": "AADSTS700213: No matching federated identity record found for presented assertion",
			})
			return
		}
		writeJSON(w, http.StatusOK,
			map[string]any{"token_type": "Bearer", "expires_in": 3599, "access_token": a.token()})
	default:
		http.NotFound(w, r)
	}
}

func (a *azure) token() string {
	claims, err := json.Marshal(map[string]any{"aud": azureVault, "tid": azureTenant,
		"oid": azureObject, "appid": azureClient, "exp": time.Now().Add(time.Hour).Unix()})
	if err != nil {
		a.t.Error(err)
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." +
		base64.RawURLEncoding.EncodeToString(claims)
	return text + "." + base64.RawURLEncoding.EncodeToString(a.sign(text))
}

func (a *azure) sign(text string) []byte {
	mac := hmac.New(sha256.New, a.secret)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func (a *azure) authentic(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	dot := strings.LastIndex(token, ".")
	if !ok || dot < 0 {
		return false
	}
	got, err := base64.RawURLEncoding.DecodeString(token[dot+1:])
	return err == nil && subtle.ConstantTimeCompare(got, a.sign(token[:dot])) == 1
}

// vault answers wrapkey and unwrapkey.
func (a *azure) vault(w http.ResponseWriter, r *http.Request) {
	if !a.authentic(r) {
		w.Header().Set("WWW-Authenticate",
			fmt.Sprintf("Bearer authorization=%q, resource=%q", a.base+"/"+azureTenant, azureVault))
		azureRefuse(w, http.StatusUnauthorized, "Unauthorized",
			"AKV10000: Request is missing a Bearer or PoP token.")
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // keys NAME [VERSION] OP
	if len(parts) < 3 || parts[0] != "keys" || parts[1] != azureKey {
		azureRefuse(w, http.StatusNotFound, "KeyNotFound",
			"A key with (name/id) was not found in this key vault.")
		return
	}
	v := a.versions[len(a.versions)-1]
	if len(parts) == 4 {
		found := false
		for _, candidate := range a.versions {
			if candidate.id == parts[2] {
				v, found = candidate, true
			}
		}
		if !found {
			azureRefuse(w, http.StatusNotFound, "KeyNotFound",
				"A key with (name/id) "+azureKey+"/"+parts[2]+" was not found in this key vault.")
			return
		}
	}
	a.operate(w, r, v, parts[len(parts)-1])
}

func (a *azure) operate(w http.ResponseWriter, r *http.Request, v azureVersion, op string) {
	var body struct{ Alg, Value string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Alg != "RSA-OAEP-256" {
		azureRefuse(w, http.StatusBadRequest, "BadParameter",
			"Key and/or algorithm are not supported.")
		return
	}
	value, err := base64.RawURLEncoding.DecodeString(body.Value)
	switch {
	case err != nil:
		azureRefuse(w, http.StatusBadRequest, "BadParameter", "Property value has invalid value")
		return
	case a.denied:
		azureRefuse(w, http.StatusForbidden, "Forbidden",
			"Caller is not authorized to perform action on resource. InnerError: ForbiddenByRbac")
		return
	case !v.enabled:
		azureRefuse(w, http.StatusForbidden, "Forbidden",
			"Operation "+op+" is not allowed on a disabled key. InnerError: KeyDisabled")
		return
	}
	var out []byte
	if op == "wrapkey" {
		out, err = rsa.EncryptOAEP(sha256.New(), rand.Reader, &v.key.PublicKey, value, nil)
	} else {
		out, err = rsa.DecryptOAEP(sha256.New(), nil, v.key, value, nil)
	}
	if err != nil {
		azureRefuse(w, http.StatusBadRequest, "BadParameter", "The parameter is incorrect.")
		return
	}
	writeJSON(w, http.StatusOK,
		map[string]any{"kid": "https://loom.vault.azure.net/keys/" + azureKey + "/" + v.id,
			"value": base64.RawURLEncoding.EncodeToString(out)})
}

func azureRefuse(w http.ResponseWriter, code int, name, message string) {
	writeJSON(w, code, map[string]any{"error": map[string]any{"code": name, "message": message}})
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
