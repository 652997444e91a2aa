package kek

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
)

// gcpCredentials finds the default credentials when they are first needed and tries again after a
// failure: an agent may start before its token's file or the metadata server is there.
type gcpCredentials struct {
	mu    sync.Mutex
	found *auth.Credentials
}

func (c *gcpCredentials) get() (*auth.Credentials, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found != nil {
		return c.found, nil
	}
	found, err := credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{gcpScope}})
	if err != nil {
		return nil, &Error{Kind: ErrCredentials,
			Err: fmt.Errorf("find Google Cloud credentials: %w", err)}
	}
	c.found = found
	return found, nil
}

// Token lets gRPC ask for a token.
func (c *gcpCredentials) Token(ctx context.Context) (*auth.Token, error) {
	found, err := c.get()
	if err != nil {
		return nil, err
	}
	return found.Token(ctx)
}

func (c *gcpCredentials) lazy() *auth.Credentials {
	return auth.NewCredentials(&auth.CredentialsOptions{TokenProvider: c})
}

// jsonField is a string in a JSON object, or "".
func jsonField(raw []byte, name string) string {
	var object map[string]any
	if json.Unmarshal(raw, &object) != nil {
		return ""
	}
	s, _ := object[name].(string)
	return s
}
