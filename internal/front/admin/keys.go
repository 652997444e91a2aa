package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/epochs"
)

// KeysBackend is what a Backend has that manages keys. One that does not answers 404 on /v1/keys.
type KeysBackend interface {
	// Keys says how epochs and the keys with every peer are.
	Keys(ctx context.Context) (*keys.Status, error)
	// RotateKeys makes the next epoch, once the one before is in use.
	RotateKeys(ctx context.Context) (*epochs.Epoch, error)
	// KeyHistory is what happened to keys lately, the oldest first.
	KeyHistory(ctx context.Context) ([]audit.Record, error)
}

// rotateTime is how long a rotation may wait for the one before.
const rotateTime = 30 * time.Second

// keysBackend is the Backend's part for keys, if it has one.
func (a *api) keysBackend() (KeysBackend, error) {
	if backend, ok := a.backend.(KeysBackend); ok {
		return backend, nil
	}
	return nil, &StatusError{http.StatusNotFound, "this agent manages no keys"}
}

func (a *api) keys(w http.ResponseWriter, r *http.Request) error {
	backend, err := a.keysBackend()
	if err != nil {
		return err
	}
	status, err := backend.Keys(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, status)
}

func (a *api) rotateKeys(w http.ResponseWriter, r *http.Request) error {
	backend, err := a.keysBackend()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), rotateTime)
	defer cancel()
	epoch, err := backend.RotateKeys(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return &StatusError{http.StatusConflict, err.Error()}
	}
	if err != nil {
		return err
	}
	return writeJSON(w, epoch)
}

func (a *api) keyHistory(w http.ResponseWriter, r *http.Request) error {
	backend, err := a.keysBackend()
	if err != nil {
		return err
	}
	events, err := backend.KeyHistory(r.Context())
	return list(w, events, err)
}

// Keys asks how epochs and the keys with every peer are.
func (c *Client) Keys(ctx context.Context) (*keys.Status, error) {
	return get[*keys.Status](ctx, c, "/v1/keys", nil)
}

// KeyHistory asks what happened to keys lately, the oldest first.
func (c *Client) KeyHistory(ctx context.Context) ([]audit.Record, error) {
	return get[[]audit.Record](ctx, c, "/v1/keys/history", nil)
}

// RotateKeys makes the next epoch. It waits until the one before is in use.
func (c *Client) RotateKeys(ctx context.Context) (*epochs.Epoch, error) {
	return call[*epochs.Epoch](ctx, c, http.MethodPost, "/v1/keys/rotate", nil, nil)
}
