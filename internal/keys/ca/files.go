package ca

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/statefile"
)

// renewSuffix names the file beside a certificate that says where it is renewed.
const renewSuffix = ".renew"

// replace puts a file in the place of another, whole or not at all.
func replace(path string, text []byte, mode fs.FileMode) error {
	if err := statefile.WriteMode(path, text, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// checkWritable makes the directories of an identity's files, and sees that files can be made
// there.
func checkWritable(paths nodeid.Paths) error {
	for _, path := range []string{paths.Cert, paths.Key, paths.Bundle} {
		dir := filepath.Dir(path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the certificate's directory: %w", err)
		}
		probe, err := os.CreateTemp(dir, ".weft-probe.*")
		if err != nil {
			return fmt.Errorf("write certificates: %w", err)
		}
		if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
			return fmt.Errorf("write certificates: %w", err)
		}
	}
	return nil
}

// Write puts an identity into its files. A crash at any point leaves either the old pair or the new
// one: until the new key is at its place it waits under a name where nodeid looks for it too.
func (id *Identity) Write(paths nodeid.Paths) error {
	if err := checkWritable(paths); err != nil {
		return err
	}
	next := paths.Key + nodeid.NextSuffix
	if err := replace(paths.Bundle, id.Bundle, 0o644); err != nil {
		return err
	}
	if err := replace(next, id.Key, 0o600); err != nil {
		return err
	}
	if err := replace(paths.Cert, id.Cert, 0o644); err != nil {
		return err
	}
	if err := statefile.Move(next, paths.Key); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// Zero overwrites the key.
func (id *Identity) Zero() { clear(id.Key) }

// renewal says where a certificate is renewed.
type renewal struct {
	Server string `json:"server"`
}

func writeRenewal(paths nodeid.Paths, server string) error {
	text, err := json.Marshal(renewal{Server: server})
	if err != nil {
		return err
	}
	return replace(paths.Cert+renewSuffix, append(text, '\n'), 0o644)
}

// RenewalServer is where the certificate of these files is renewed: the server that it was got
// from. "" if it did not come from `weft ca join`.
func RenewalServer(paths nodeid.Paths) (string, error) {
	path := paths.Cert + renewSuffix
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read where to renew: %w", err)
	}
	var got renewal
	if err := json.Unmarshal(text, &got); err != nil || got.Server == "" {
		return "", fmt.Errorf("%s does not say where to renew: want {\"server\": \"HOST:PORT\"}",
			path)
	}
	return got.Server, nil
}
