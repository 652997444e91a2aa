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
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
)

var azureAlgorithms = []string{"RSA-OAEP-256", "A256KW", "A192KW", "A128KW"}

// azureKEK wraps with Key Vault's wrapKey, which takes no additional data: the binding is a hash
// inside what is wrapped. gocloud.dev's keeper is not used: it always decrypts with the newest
// version of the key, so that a rotation would make every older blob unreadable.
type azureKEK struct {
	client  *azkeys.Client
	creds   azcore.TokenCredential
	scope   string
	name    string
	version string // pinned by the URL, or ""
	algo    azkeys.EncryptionAlgorithm
}

func openAzure(_ context.Context, u *url.URL) (provider, error) {
	if err := allowParams(u, "algorithm", "endpoint", "disable_instance_discovery"); err != nil {
		return nil, err
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if u.Host == "" || len(parts) < 2 || len(parts) > 3 || parts[0] != "keys" || parts[1] == "" {
		return nil, configError("keys.kek", "names no Key Vault key",
			"write it as azurekeyvault://NAME.vault.azure.net/keys/KEY[/VERSION]")
	}
	query := u.Query()
	algorithm := query.Get("algorithm")
	if algorithm == "" {
		algorithm = azureAlgorithms[0]
	}
	if !slices.Contains(azureAlgorithms, algorithm) {
		return nil, configError("keys.kek: algorithm",
			fmt.Sprintf("%q does not wrap keys safely", algorithm),
			"use one of "+strings.Join(azureAlgorithms, ", "))
	}
	a := &azureKEK{name: parts[1], algo: azkeys.EncryptionAlgorithm(algorithm),
		scope: azureScope(u.Host)}
	if len(parts) == 3 {
		a.version = parts[2]
	}
	return a, a.connect(u.Host, query)
}

// azureScope is what tokens are asked for when the vault itself does not say it: the vault's domain
// without its own name.
func azureScope(host string) string {
	_, domain, ok := strings.Cut(host, ".")
	if !ok || strings.Contains(host, ":") {
		domain = "vault.azure.net"
	}
	return "https://" + domain + "/.default"
}

func (a *azureKEK) connect(host string, query url.Values) error {
	endpoint, err := endpointParam(query)
	if err != nil {
		return err
	}
	discovery := false
	if raw := query.Get("disable_instance_discovery"); raw != "" {
		if discovery, err = strconv.ParseBool(raw); err != nil {
			return configError("keys.kek: disable_instance_discovery",
				fmt.Sprintf("%q is not true or false", raw),
				"use true in a cloud of one's own only")
		}
	}
	clientOptions := policy.ClientOptions{Retry: policy.RetryOptions{MaxRetries: -1}} // the caller type retries
	a.creds, err = azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: clientOptions, DisableInstanceDiscovery: discovery})
	if err != nil {
		return &Error{Kind: ErrConfig, Subject: "keys.kek", Err: err, Fix: "see docs/kms/azure.md"}
	}
	vault := "https://" + host
	if endpoint != "" {
		vault = endpoint
	}
	// A vault at an endpoint of its own does not have the name that its tokens are for.
	a.client, err = azkeys.NewClient(vault, a.creds,
		&azkeys.ClientOptions{ClientOptions: clientOptions,
			DisableChallengeResourceVerification: endpoint != ""})
	if err != nil {
		return &Error{Kind: ErrConfig, Subject: "keys.kek", Err: err, Fix: "see docs/kms/azure.md"}
	}
	return nil
}

func (a *azureKEK) encrypt(ctx context.Context, dek []byte, bind Binding) ([]byte, string, error) {
	plain := withBinding(dek, bind)
	defer clear(plain)
	out, err := a.client.WrapKey(ctx, a.name, a.version,
		azkeys.KeyOperationParameters{Algorithm: &a.algo, Value: plain}, nil)
	if err != nil {
		return nil, "", azureError(err)
	}
	if out.KID == nil || out.KID.Version() == "" {
		return nil, "", &Error{Kind: ErrUnreachable,
			Err: errors.New("the vault did not say which version of the key it used")}
	}
	return out.Result, out.KID.Version(), nil
}

// decrypt asks for the version that wrapped the blob. Were that name forged, another version of the
// same key would only fail to open it.
func (a *azureKEK) decrypt(ctx context.Context, ciphertext []byte, version string,
	bind Binding) ([]byte, error) {
	if version == "" || path.Base(version) != version {
		return nil, &Error{Kind: ErrCorrupt,
			Err: errors.New("it does not name the version of the key that wrapped it")}
	}
	out, err := a.client.UnwrapKey(ctx, a.name, version,
		azkeys.KeyOperationParameters{Algorithm: &a.algo, Value: ciphertext}, nil)
	if err != nil {
		return nil, azureError(err)
	}
	return cutBinding(out.Result, bind)
}

// identity reads the token's own claims: no further right is needed for it.
func (a *azureKEK) identity(ctx context.Context) (Identity, error) {
	token, err := a.creds.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{a.scope}})
	if err != nil {
		return Identity{}, azureError(err)
	}
	parts := strings.Split(token.Token, ".")
	if len(parts) != 3 {
		return Identity{Note: "the token is not a JWT"}, nil
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Identity{Note: "the token is not a JWT"}, nil
	}
	id := Identity{Principal: "object " + jsonField(claims, "oid"),
		Source: "tenant " + jsonField(claims, "tid")}
	if app := jsonField(claims, "appid"); app != "" {
		id.Principal += ", application " + app
	}
	return id, nil
}

func (a *azureKEK) close() error { return nil }

// azureError gives an SDK's error its kind.
func azureError(err error) error {
	var response *azcore.ResponseError
	var auth *azidentity.AuthenticationFailedError
	e := &Error{Err: err}
	switch {
	case errors.As(err, &response):
		e.Kind = azureKind(response)
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &auth) && !unreachableText(err.Error()):
		e.Kind = ErrCredentials
	case kindOf(err) != nil:
		e.Kind = kindOf(err)
	case unreachableText(err.Error()):
		e.Kind = ErrUnreachable
	default:
		e.Kind = ErrCredentials // what is not from the vault is from the token's source
	}
	return e
}

// azureDisabled finds, among refusals, those that are about the key's own state.
var azureDisabled = regexp.MustCompile(`KeyDisabled|(disabled|expired|not yet valid) key`)

func azureKind(r *azcore.ResponseError) error {
	text := r.Error()
	switch {
	case r.StatusCode == http.StatusUnauthorized:
		return ErrCredentials
	case r.StatusCode == http.StatusForbidden && azureDisabled.MatchString(text):
		return ErrDisabled
	case r.StatusCode == http.StatusForbidden:
		return ErrDenied
	case r.StatusCode == http.StatusNotFound:
		return ErrNotFound
	case r.StatusCode == http.StatusConflict:
		return ErrDisabled // deleted, but not purged yet
	case r.StatusCode == http.StatusTooManyRequests:
		return ErrThrottled
	case r.StatusCode == http.StatusBadRequest:
		return ErrCorrupt
	}
	return ErrUnreachable
}
