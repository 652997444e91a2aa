package kek

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/hashicorp/vault/api"
)

var vaultParams = []string{"engine", "endpoint", "namespace", "auth", "auth_mount", "role",
	"jwt_file", "token_file"}

var vaultVersion = regexp.MustCompile(`^vault:(v[0-9]+):`)

// vaultKEK wraps with the transit engine of Vault or OpenBao. The binding is sent as associated
// data and as the context for derived keys; since a server that does not know these would ignore
// them without a word, a hash of it is inside what is wrapped, too. gocloud.dev's keeper is not
// used: it can do neither.
type vaultKEK struct {
	login *vaultLogin
	path  string // of the engine
	key   string
}

func openVault(_ context.Context, u *url.URL) (provider, error) {
	if err := allowParams(u, vaultParams...); err != nil {
		return nil, err
	}
	key, query := path.Join(u.Host, u.Path), u.Query()
	if key == "" || strings.Contains(key, "/") {
		return nil, configError("keys.kek", "names no transit key",
			"write it as hashivault://KEY[?engine=transit]")
	}
	engine := strings.Trim(query.Get("engine"), "/")
	if engine == "" {
		engine = "transit"
	}
	login, err := newVaultLogin(query)
	if err != nil {
		return nil, err
	}
	return &vaultKEK{login: login, path: engine, key: key}, nil
}

func (v *vaultKEK) encrypt(ctx context.Context, dek []byte, bind Binding) ([]byte, string, error) {
	plain := withBinding(dek, bind)
	defer clear(plain)
	out, err := v.call(ctx, "encrypt", bind, "plaintext", base64.StdEncoding.EncodeToString(plain))
	if err != nil {
		return nil, "", err
	}
	ciphertext, _ := out["ciphertext"].(string)
	version := vaultVersion.FindStringSubmatch(ciphertext)
	if version == nil {
		return nil, "", &Error{Kind: ErrUnreachable,
			Err: errors.New("the answer holds no transit ciphertext")}
	}
	return []byte(ciphertext), version[1], nil
}

func (v *vaultKEK) decrypt(ctx context.Context, ciphertext []byte, _ string,
	bind Binding) ([]byte, error) {
	if !vaultVersion.Match(ciphertext) {
		return nil, &Error{Kind: ErrCorrupt, Err: errors.New("it is not a transit ciphertext")}
	}
	out, err := v.call(ctx, "decrypt", bind, "ciphertext", string(ciphertext))
	if err != nil {
		return nil, err
	}
	text, _ := out["plaintext"].(string)
	plain, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, &Error{Kind: ErrUnreachable, Err: errors.New("the answer holds no plaintext")}
	}
	return cutBinding(plain, bind)
}

func (v *vaultKEK) call(ctx context.Context, op string, bind Binding, field,
	value string) (map[string]any, error) {
	aad := base64.StdEncoding.EncodeToString(bind.additionalData())
	body := map[string]any{field: value, "associated_data": aad, "context": aad}
	for again := true; ; again = false {
		client, token, err := v.login.client(ctx)
		if err != nil {
			return nil, err
		}
		secret, err := client.Logical().WriteWithContext(ctx, v.path+"/"+op+"/"+v.key, body)
		switch err = vaultError(err); {
		case errors.Is(err, ErrCredentials) && v.login.forget(token) && again:
			continue // revoked before its time: a new login may help
		case errors.Is(err, ErrDenied):
			v.login.forget(token) // the next login may come with more rights
			return nil, err
		case err != nil:
			return nil, err
		case secret == nil:
			return nil, &Error{Kind: ErrNotFound,
				Err: fmt.Errorf("no engine answers at %s/", v.path)}
		}
		return secret.Data, nil
	}
}

func (v *vaultKEK) identity(ctx context.Context) (Identity, error) {
	client, _, err := v.login.client(ctx)
	if err != nil {
		return Identity{}, err
	}
	secret, err := client.Auth().Token().LookupSelfWithContext(ctx)
	if err != nil {
		return Identity{}, fmt.Errorf("look up the token: %w", vaultError(err))
	}
	if secret == nil {
		return Identity{}, nil
	}
	name, _ := secret.Data["display_name"].(string)
	policies, _ := secret.TokenPolicies()
	return Identity{Principal: name, Source: v.login.source(),
		Note: "policies " + strings.Join(policies, ", ")}, nil
}

func (v *vaultKEK) close() error { return v.login.close() }

// vaultError gives an API error its kind.
func vaultError(err error) error {
	if err == nil {
		return nil
	}
	var response *api.ResponseError
	if !errors.As(err, &response) {
		if kind := kindOf(err); kind != nil {
			return &Error{Kind: kind, Err: err}
		}
		return err
	}
	// Not the error itself: its text repeats the URL over several lines.
	text := vaultNoise.ReplaceAllString(strings.Join(response.Errors, "; "), " ")
	e := &Error{Err: fmt.Errorf("the server answered %d: %s", response.StatusCode,
		strings.TrimSpace(text))}
	switch {
	case response.StatusCode == http.StatusForbidden &&
		(strings.Contains(text, "invalid token") || strings.Contains(text, "bad token")):
		e.Kind = ErrCredentials
	case response.StatusCode == http.StatusForbidden:
		e.Kind = ErrDenied
	case response.StatusCode == http.StatusUnauthorized:
		e.Kind = ErrCredentials
	case response.StatusCode == http.StatusTooManyRequests:
		e.Kind = ErrThrottled
	case response.StatusCode == http.StatusNotFound:
		e.Kind, e.Fix = ErrNotFound, "check the engine's path and the namespace in keys.kek"
	case response.StatusCode == http.StatusBadRequest:
		e.Kind = vaultBadRequest(text)
	default:
		e.Kind = ErrUnreachable // sealed, standby, a fault of its own
	}
	return e
}

// vaultNoise is how Vault frames several errors, or one.
var vaultNoise = regexp.MustCompile(`(\d+ errors? occurred:|\*\s|\s)+`)

func vaultBadRequest(text string) error {
	switch {
	case strings.Contains(text, "not found"):
		return ErrNotFound
	case strings.Contains(text, "too old"), strings.Contains(text, "disallowed by policy"),
		strings.Contains(text, "soft deleted"):
		return ErrDisabled
	case strings.Contains(text, "ciphertext"),
		strings.Contains(text, "message authentication failed"), strings.Contains(text, "invalid"):
		return ErrCorrupt
	}
	return ErrConfig
}
