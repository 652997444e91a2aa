package kek

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"
)

// podTokenFile is where Kubernetes projects a pod's service account token.
const podTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// vaultLogin holds a client and keeps it logged in: with a token from the environment or a file, or
// with a JWT that is exchanged for a token, again before that one runs out. Files are read whenever
// they are needed, since whoever projects them renews them.
type vaultLogin struct {
	api       *api.Client
	method    string // token, kubernetes or jwt
	mount     string
	role      string
	jwtFile   string
	tokenFile string

	mu      sync.Mutex
	renewAt time.Time // when a token from a login has to be replaced
}

func newVaultLogin(query url.Values) (*vaultLogin, error) {
	cfg := api.DefaultConfig() // VAULT_ADDR, VAULT_CACERT, VAULT_NAMESPACE, …
	if cfg.Error != nil {
		return nil, &Error{Kind: ErrConfig, Subject: "keys.kek", Err: cfg.Error,
			Fix: "check the VAULT_ variables"}
	}
	if address := firstSet(query.Get("endpoint"), os.Getenv("VAULT_SERVER_URL")); address != "" {
		cfg.Address = address
	} else if os.Getenv("VAULT_ADDR") == "" && cfg.AgentAddress == "" {
		return nil, configError("keys.kek", "names no server and VAULT_ADDR is not set",
			"add ?endpoint=https://HOST:PORT, or set VAULT_ADDR")
	}
	if !strings.HasPrefix(cfg.Address, "unix://") {
		if err := checkEndpoint("keys.kek: endpoint or VAULT_ADDR", cfg.Address); err != nil {
			return nil, err
		}
	}
	cfg.MaxRetries = 0 // the caller type retries
	client, err := api.NewClient(cfg)
	if err != nil {
		return nil, &Error{Kind: ErrConfig, Subject: "keys.kek", Err: err,
			Fix: "check the VAULT_ variables"}
	}
	if token := os.Getenv("VAULT_SERVER_TOKEN"); token != "" {
		client.SetToken(token)
	}
	client.SetCloneHeaders(true) // a login keeps the namespace
	if ns := query.Get("namespace"); ns != "" {
		client.SetNamespace(ns)
	}
	l := &vaultLogin{api: client, method: query.Get("auth"),
		mount: strings.Trim(query.Get("auth_mount"), "/"), role: query.Get("role"),
		jwtFile: query.Get("jwt_file"), tokenFile: query.Get("token_file")}
	return l, l.check()
}

func (l *vaultLogin) check() error {
	switch l.method {
	case "", "token":
		l.method = "token"
		if l.role != "" || l.jwtFile != "" || l.mount != "" {
			return configError("keys.kek", "has role, jwt_file or auth_mount, but no auth",
				"add auth=kubernetes or auth=jwt")
		}
		return nil
	case "kubernetes", "jwt":
		if l.tokenFile != "" {
			return configError("keys.kek", "has both auth="+l.method+" and token_file",
				"take one of them out")
		}
		if l.role == "" && l.method == "kubernetes" {
			return configError("keys.kek", "has auth=kubernetes, but no role",
				"add role=ROLE, the role of the auth method that this node may log in as")
		}
		l.mount, l.jwtFile = firstSet(l.mount, l.method), firstSet(l.jwtFile, podTokenFile)
		return nil
	}
	return configError("keys.kek: auth", fmt.Sprintf("has the unknown method %q", l.method),
		"use token, kubernetes or jwt")
}

// client returns a client and its token, which is good as far as this end can tell.
func (l *vaultLogin) client(ctx context.Context) (*api.Client, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.tokenFile != "":
		token, err := readToken("token_file", l.tokenFile)
		if err != nil {
			return nil, "", err
		}
		l.api.SetToken(token)
	case l.method == "token" && l.api.Token() == "":
		return nil, "", &Error{Kind: ErrCredentials, Err: errors.New("no token"),
			Fix: "add auth=kubernetes or auth=jwt to keys.kek, or token_file=PATH, or set VAULT_TOKEN"}
	case l.method != "token" && !time.Now().Before(l.renewAt):
		if err := l.logIn(ctx); err != nil {
			return nil, "", err
		}
	}
	return l.api, l.api.Token(), nil
}

func (l *vaultLogin) logIn(ctx context.Context) error {
	jwt, err := readToken("jwt_file", l.jwtFile)
	if err != nil {
		return err
	}
	// On a client of its own: calls under way keep the token that they have.
	anonymous, err := l.api.Clone()
	if err != nil {
		return fmt.Errorf("copy Vault client: %w", err)
	}
	anonymous.ClearToken()
	body := map[string]any{"jwt": jwt}
	if l.role != "" {
		body["role"] = l.role
	}
	secret, err := anonymous.Logical().WriteWithContext(ctx, "auth/"+l.mount+"/login", body)
	if err != nil {
		return loginError(l, vaultError(err))
	}
	if secret == nil || secret.Auth == nil {
		return loginError(l, errors.New("the answer holds no token"))
	}
	l.api.SetToken(secret.Auth.ClientToken)
	lease := time.Duration(secret.Auth.LeaseDuration) * time.Second
	if lease <= 0 {
		lease = time.Hour
	}
	l.renewAt = time.Now().Add(lease * 2 / 3)
	return nil
}

// loginError: whatever refuses a login is about credentials; an outage stays one.
func loginError(l *vaultLogin, err error) error {
	if kind := kindOf(err); kind == ErrUnreachable || kind == ErrThrottled {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if known := (*Error)(nil); errors.As(err, &known) && known.Err != nil {
		err = known.Err // its kind is about keys
	}
	return &Error{Kind: ErrCredentials,
		Err: fmt.Errorf("log in at auth/%s with %s: %w", l.mount, l.jwtFile, err),
		Fix: "check the auth method's role, audience and bound service accounts (see docs/kms/vault.md)"}
}

// forget makes the next call log in again: a token may be revoked before its time, and policies
// change. It says whether there is a way to.
func (l *vaultLogin) forget(token string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.method != "token" && l.api.Token() == token {
		l.renewAt = time.Time{}
	}
	return l.method != "token"
}

func (l *vaultLogin) source() string {
	switch {
	case l.tokenFile != "":
		return "token in " + l.tokenFile
	case l.method == "token":
		return "token from the environment"
	}
	return "auth/" + l.mount + " with " + l.jwtFile
}

// close revokes a token that this process got for itself; failing that it runs out by itself.
func (l *vaultLogin) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.method == "token" || l.renewAt.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := l.api.Auth().Token().RevokeSelfWithContext(ctx, ""); err != nil {
		return fmt.Errorf("give back Vault's token: %w", vaultError(err))
	}
	l.renewAt = time.Time{}
	return nil
}

func readToken(field, file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", &Error{Kind: ErrCredentials, Err: fmt.Errorf("keys.kek: %s: %w", field, err),
			Fix: "mount the token there, or name its path with " + field + "="}
	}
	token := strings.TrimSpace(string(raw))
	if token == "" {
		return "", &Error{Kind: ErrCredentials,
			Err: fmt.Errorf("keys.kek: %s: %s is empty", field, file),
			Fix: "wait for whoever writes it, or put a token there"}
	}
	return token, nil
}

func firstSet(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
