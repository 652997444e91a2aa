// Command vaultdev is Vault for the tests of Weft: the real core with the transit engine and JWT
// logins, unsealed, in memory, on loopback. It prints its address and root token as JSON and ends
// when its standard input does.
//
// It is a module of its own, since Vault's dependencies are many; test/kms builds it and keeps the
// binary in the cache.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/hashicorp/go-hclog"
	jwtauth "github.com/hashicorp/vault-plugin-auth-jwt"
	"github.com/hashicorp/vault/builtin/logical/transit"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "vaultdev:", err)
		os.Exit(1)
	}
}

func run() error {
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Error, Output: os.Stderr})
	storage, err := inmem.NewInmem(nil, logger)
	if err != nil {
		return fmt.Errorf("make storage: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	address := "http://" + l.Addr().String()
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical: storage, Logger: logger, DisableMlock: true, RedirectAddr: address,
		BuiltinRegistry:    registry{},
		LogicalBackends:    map[string]logical.Factory{"transit": transit.Factory},
		CredentialBackends: map[string]logical.Factory{"jwt": jwtauth.Factory},
	})
	if err != nil {
		return fmt.Errorf("make core: %w", err)
	}
	token, err := unseal(core)
	if err != nil {
		return err
	}
	handler := vaulthttp.Handler.Handler(&vault.HandlerProperties{Core: core,
		ListenerConfig: &configutil.Listener{Address: l.Addr().String()}})
	go func() { _ = http.Serve(l, handler) }()
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"address": address,
		"token": token}); err != nil {
		return fmt.Errorf("say where: %w", err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

func unseal(core *vault.Core) (token string, err error) {
	ctx := context.Background()
	shares := &vault.SealConfig{SecretShares: 1, SecretThreshold: 1}
	result, err := core.Initialize(ctx,
		&vault.InitParams{BarrierConfig: shares, RecoveryConfig: &vault.SealConfig{}})
	if err != nil {
		return "", fmt.Errorf("initialize: %w", err)
	}
	if _, err := core.Unseal(result.SecretShares[0]); err != nil {
		return "", fmt.Errorf("unseal: %w", err)
	}
	return result.RootToken, nil
}

// registry has no other plugins than those given to the core.
type registry struct{}

func (registry) Contains(name string, kind consts.PluginType) bool {
	return name == "transit" || name == "jwt"
}
func (registry) Get(string, consts.PluginType) (func() (any, error), bool) { return nil, false }
func (registry) Keys(consts.PluginType) []string                           { return nil }
func (registry) DeprecationStatus(string, consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, true
}
func (registry) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }
