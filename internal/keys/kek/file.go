package kek

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// KeyFileSize is the length of a key file in bytes: an AES-256 key and nothing else.
const KeyFileSize = 32

// fileKEK is the embedded provider: AES-256-GCM with a key in a file. The file is read for every
// operation, so that a rotated key is noticed and the key is in memory only while it is used. Keys
// that were rotated away lie beside it as PATH.FINGERPRINT and still unwrap.
type fileKEK struct{ path string }

func openFile(_ context.Context, u *url.URL) (provider, error) {
	if err := allowParams(u); err != nil {
		return nil, err
	}
	if u.Host != "" && u.Host != "localhost" || u.Opaque != "" || !filepath.IsAbs(u.Path) {
		return nil, configError("keys.kek", "does not name an absolute path",
			"write it with three slashes: file:///etc/weft/kek")
	}
	f := &fileKEK{path: filepath.Clean(u.Path)}
	key, err := readKeyFile(f.path)
	clear(key)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (f *fileKEK) encrypt(_ context.Context, dek []byte, bind Binding) ([]byte, string, error) {
	key, err := readKeyFile(f.path)
	if err != nil {
		return nil, "", err
	}
	defer clear(key)
	aead, err := newGCM(key)
	if err != nil {
		return nil, "", err
	}
	// The nonce is random: 2^32 wraps with one key would be needed for a repeat to be worth
	// fearing.
	nonce := make([]byte, aead.NonceSize(), aead.NonceSize()+DEKSize+aead.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return aead.Seal(nonce, nonce, dek, bind.additionalData()), fingerprint(key), nil
}

func (f *fileKEK) decrypt(_ context.Context, ciphertext []byte, version string,
	bind Binding) ([]byte, error) {
	key, err := f.keyOf(version)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	aead, err := newGCM(key)
	if err != nil {
		return nil, err
	}
	if len(ciphertext) < aead.NonceSize() {
		return nil, &Error{Kind: ErrCorrupt, Err: errors.New("it is too short")}
	}
	dek, err := aead.Open(nil, ciphertext[:aead.NonceSize()], ciphertext[aead.NonceSize():],
		bind.additionalData())
	if err != nil {
		return nil, &Error{Kind: ErrCorrupt,
			Err: errors.New("it was damaged, or wrapped for another cluster or epoch than it says")}
	}
	return dek, nil
}

// keyOf reads the key with a fingerprint: the file itself, or an older one kept beside it.
func (f *fileKEK) keyOf(version string) ([]byte, error) {
	key, err := readKeyFile(f.path)
	if err != nil || fingerprint(key) == version {
		return key, err
	}
	current := fingerprint(key)
	clear(key)
	if !isFingerprint(version) {
		return nil, &Error{Kind: ErrCorrupt,
			Err: errors.New("it does not name the key that wrapped it")}
	}
	path := f.path + "." + version
	key, err = readKeyFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Kind: ErrNotFound,
			Err: fmt.Errorf("it was wrapped by the key %s, %s holds %s", version, f.path, current),
			Fix: fmt.Sprintf("put the same key file on every node; while a key is being replaced keep the other one as %s", path)}
	}
	if err == nil && fingerprint(key) != version {
		clear(key)
		return nil, configError(path, "holds another key than its name says",
			"remove it, or name it after its fingerprint")
	}
	return key, err
}

func (f *fileKEK) identity(context.Context) (Identity, error) {
	return Identity{Principal: fmt.Sprintf("uid %d", os.Geteuid()),
		Source: "the file's owner and mode", Note: "whoever can read the file can unwrap"}, nil
}

func (f *fileKEK) close() error { return nil }

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("use key file: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("use key file: %w", err)
	}
	return aead, nil
}

// fingerprint names a key without telling anything about it: the start of a hash of 256 random
// bits.
func fingerprint(key []byte) string {
	h := sha256.New()
	h.Write([]byte("weft kek file v1\x00"))
	h.Write(key)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func isFingerprint(s string) bool {
	return len(s) == 16 && strings.Trim(s, "0123456789abcdef") == ""
}

// readKeyFile reads a key and refuses a file that others can read or that is not a key, naming
// file, fault and fix.
func readKeyFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("key file %s does not exist: %w", path, fs.ErrNotExist)
		return nil, &Error{Kind: ErrConfig, Err: err,
			Fix: "make one with weft keys init, or copy the cluster's key file there"}
	case err != nil:
		return nil, &Error{Kind: ErrConfig,
			Err: fmt.Errorf("key file %s cannot be opened: %w", path, err),
			Fix: "make it readable for the agent's user only"}
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at key file %s: %w", path, err)
	}
	if err := checkKeyFile(path, info); err != nil {
		return nil, err
	}
	key := make([]byte, KeyFileSize)
	if _, err := io.ReadFull(file, key); err != nil {
		clear(key)
		return nil, fmt.Errorf("read key file %s: %w", path, err)
	}
	return key, nil
}

func checkKeyFile(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return configError("key file "+path, "is not a regular file",
			"point keys.kek at a file of 32 bytes")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		what := fmt.Sprintf("has mode %04o: others than its owner may use it", mode)
		return configError("key file "+path, what,
			"chmod 0600 "+path+"; if others may have read it, make a new one")
	}
	if uid, ok := ownerOf(info); ok && uid != 0 && uid != os.Geteuid() {
		return configError("key file "+path, fmt.Sprintf("belongs to uid %d", uid),
			"chown it to root or to the agent's user")
	}
	if info.Size() != KeyFileSize {
		return configError("key file "+path, fmt.Sprintf("has %d bytes", info.Size()),
			"a key file is exactly 32 random bytes, not text: make one with weft keys init")
	}
	return nil
}
