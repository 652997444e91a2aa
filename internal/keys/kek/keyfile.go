package kek

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"weft.dev/weft/internal/statefile"
)

// CreateKeyFile makes a new key file of mode 0600 and returns its fingerprint. It never overwrites one: the error is then fs.ErrExist.
func CreateKeyFile(path string) (string, error) {
	key := make([]byte, KeyFileSize)
	_, _ = rand.Read(key) // never fails
	defer clear(key)
	return fingerprint(key), writeKeyFile(path, key)
}

// RotateKeyFile puts a new key in path's place and keeps the old one as PATH.FINGERPRINT, so that live epochs still unwrap. It returns the new
// fingerprint. The other nodes need the new file, and keep the old one, before the next epoch.
func RotateKeyFile(path string) (string, error) {
	old, err := readKeyFile(path)
	if err != nil {
		return "", err
	}
	defer clear(old)
	if err := statefile.RemoveTemporaries(path); err != nil {
		return "", err
	}
	if err := writeKeyFile(path+"."+fingerprint(old), old); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	key := make([]byte, KeyFileSize)
	_, _ = rand.Read(key) // never fails
	defer clear(key)
	if err := statefile.Write(path, key); err != nil {
		return "", fmt.Errorf("put the new key file in place: %w", err)
	}
	return fingerprint(key), nil
}

// KeyFileFingerprint reads a key file, with all checks, and returns its fingerprint: what status and wrapped keys call its version.
func KeyFileFingerprint(path string) (string, error) {
	key, err := readKeyFile(path)
	if err != nil {
		return "", err
	}
	defer clear(key)
	return fingerprint(key), nil
}

// writeKeyFile makes a file that did not exist and lets it reach the disk: an epoch wrapped with a lost key is lost too.
func writeKeyFile(path string, key []byte) error {
	if err := statefile.Create(path, key, 0o600); err != nil {
		return fmt.Errorf("make key file %s: %w", path, err)
	}
	return nil
}

// ownerOf is the user that a file belongs to.
func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
