package kek

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"syscall"

	"weft.dev/weft/internal/statefile"
)

// CreateKeyFile makes a new key file of mode 0600 and returns its fingerprint. It never overwrites
// one: the error is then fs.ErrExist. The file is on disk when it returns: an epoch wrapped with a
// lost key is lost too.
func CreateKeyFile(path string) (string, error) {
	key := make([]byte, KeyFileSize)
	_, _ = rand.Read(key) // never fails
	defer clear(key)
	if err := statefile.Create(path, key, 0o600); err != nil {
		return "", fmt.Errorf("make key file %s: %w", path, err)
	}
	return fingerprint(key), nil
}

// ownerOf is the user that a file belongs to.
func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
