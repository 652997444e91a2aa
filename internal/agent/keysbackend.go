package agent

import (
	"context"
	"net/http"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/epochs"
)

var _ admin.KeysBackend = (*backend)(nil)

// ring is the key manager, or the refusal to give while there is none.
func (b *backend) ring() (*keyring, error) {
	if !b.cfg.Encryption.On() {
		return nil, &admin.StatusError{Code: http.StatusConflict,
			Msg: "this agent manages no keys: encryption.mode is off"}
	}
	if ring := b.keys.Load(); ring != nil {
		return ring, nil
	}
	msg := "there are no keys yet: " + b.keysProblem()
	if known := b.synced.Load(); known != nil && len(*known) == 0 {
		msg = "there are no keys: this node knows no other node that it would need them for"
	}
	return nil, &admin.StatusError{Code: http.StatusServiceUnavailable, Msg: msg}
}

// Keys implements admin.KeysBackend.
func (b *backend) Keys(context.Context) (*keys.Status, error) {
	ring, err := b.ring()
	if err != nil {
		return nil, err
	}
	status := ring.Status()
	return &status, nil
}

// RotateKeys implements admin.KeysBackend.
func (b *backend) RotateKeys(ctx context.Context) (*epochs.Epoch, error) {
	ring, err := b.ring()
	if err != nil {
		return nil, err
	}
	epoch, err := ring.Rotate(ctx)
	if err != nil {
		return nil, err
	}
	return &epoch, nil
}

// KeyHistory implements admin.KeysBackend.
func (b *backend) KeyHistory(context.Context) ([]audit.Record, error) {
	ring, err := b.ring()
	if err != nil {
		return nil, err
	}
	return ring.History(), nil
}
