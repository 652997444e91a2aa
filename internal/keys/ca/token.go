package ca

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"weft.dev/weft/api/v1alpha1"
)

const (
	// DefaultTokenValid is how long a token may be used.
	DefaultTokenValid = time.Hour
	// maxTokenValid bounds it.
	maxTokenValid = 30 * 24 * time.Hour
	// forgetAfter is how long after its end a token is still known by what became of it.
	forgetAfter = 7 * 24 * time.Hour

	tokenPrefix  = "weft-join-"
	tokenVersion = 1
	secretSize   = 32
	pinSize      = sha256.Size
	sumSize      = 4

	tokenDir = "tokens"
	usedDir  = "used"
)

// token is what a joining node is given: which root to trust, who it is, and a secret that proves
// it.
type token struct {
	pin    []byte
	secret []byte
	node   string
}

// String is the token as it is passed on. Its last bytes are a checksum, so that a cut-off token is
// seen as such.
func (t *token) String() string {
	raw := append([]byte{tokenVersion}, t.pin...)
	raw = append(raw, t.secret...)
	raw = append(raw, t.node...)
	sum := sha256.Sum256(raw)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(raw, sum[:sumSize]...))
}

// parseToken reads a token. Its errors never quote it.
func parseToken(text string) (*token, error) {
	encoded, found := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if !found || err != nil || len(raw) < 1+pinSize+secretSize+1+sumSize {
		return nil, fmt.Errorf("%w: want the whole of what `weft ca token` printed, %s…",
			ErrTokenMalformed, tokenPrefix)
	}
	body, sum := raw[:len(raw)-sumSize], sha256.Sum256(raw[:len(raw)-sumSize])
	if !bytes.Equal(sum[:sumSize], raw[len(body):]) {
		return nil, fmt.Errorf("%w: it was not copied whole", ErrTokenMalformed)
	}
	if body[0] != tokenVersion {
		return nil, fmt.Errorf("%w: it has version %d, this program reads %d", ErrTokenMalformed,
			body[0], tokenVersion)
	}
	t := &token{pin: body[1 : 1+pinSize], secret: body[1+pinSize : 1+pinSize+secretSize],
		node: string(body[1+pinSize+secretSize:])}
	if wrong := v1alpha1.CheckName(t.node); wrong != "" {
		return nil, fmt.Errorf("%w: its node's name %s", ErrTokenMalformed, wrong)
	}
	return t, nil
}

// hashSecret is the name under which a token is kept. The secret is random, so a plain hash gives
// nothing away.
func hashSecret(secret []byte) string {
	sum := sha256.Sum256(append([]byte("weft ca token\x00"), secret...))
	return hex.EncodeToString(sum[:])
}

// TokenInfo is what the authority keeps of a token; the token itself it does not.
type TokenInfo struct {
	Node    string    `json:"node"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	// Used is when it was, nil if it was not.
	Used *time.Time `json:"used,omitempty"`
}

// NewToken makes a token with which that node, and only that, can join once.
func (a *Authority) NewToken(node string, valid time.Duration) (string, TokenInfo, error) {
	if wrong := v1alpha1.CheckName(node); wrong != "" {
		return "", TokenInfo{}, fmt.Errorf("node %s", wrong)
	}
	if valid < time.Minute || valid > maxTokenValid {
		return "", TokenInfo{}, fmt.Errorf("a token that is valid for %v: give one minute to %v",
			valid, maxTokenValid)
	}
	a.forgetTokens()
	t := token{pin: pinOf(a.root), secret: make([]byte, secretSize), node: node}
	if _, err := rand.Read(t.secret); err != nil {
		return "", TokenInfo{}, fmt.Errorf("make a token: %w", err)
	}
	defer clear(t.secret)
	now := a.now().UTC().Truncate(time.Second)
	info := TokenInfo{Node: node, Created: now, Expires: now.Add(valid)}
	text, err := json.Marshal(info)
	if err != nil {
		return "", TokenInfo{}, err
	}
	dir := filepath.Join(a.dir, tokenDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", TokenInfo{}, fmt.Errorf("keep the token's hash: %w", err)
	}
	if err := replace(filepath.Join(dir, hashSecret(t.secret)), text, 0o600); err != nil {
		return "", TokenInfo{}, err
	}
	return t.String(), info, nil
}

// checkToken tells whose token a secret is, if it can still be used.
func (a *Authority) checkToken(secret []byte) (TokenInfo, error) {
	name := hashSecret(secret)
	info, err := readToken(filepath.Join(a.dir, tokenDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		if used, err := readToken(filepath.Join(a.dir, usedDir, name)); err == nil {
			return used, fmt.Errorf("%w: by node %s", ErrTokenUsed, used.Node)
		}
		return TokenInfo{}, ErrTokenUnknown
	}
	if err != nil {
		return TokenInfo{}, fmt.Errorf("read a token: %w", err)
	}
	if a.now().After(info.Expires) {
		return info, fmt.Errorf("%w: on %s", ErrTokenExpired,
			info.Expires.UTC().Format(time.RFC3339))
	}
	return info, nil
}

// useToken spends a token. Of several that try at once the file system lets one do it.
func (a *Authority) useToken(secret []byte) error {
	name := hashSecret(secret)
	if err := os.MkdirAll(filepath.Join(a.dir, usedDir), 0o700); err != nil {
		return fmt.Errorf("spend a token: %w", err)
	}
	used := filepath.Join(a.dir, usedDir, name)
	err := os.Rename(filepath.Join(a.dir, tokenDir, name), used)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrTokenUsed
	}
	if err != nil {
		return fmt.Errorf("spend a token: %w", err)
	}
	// The time of use is the file's: it is spent already should this fail.
	now := a.now()
	_ = os.Chtimes(used, now, now)
	return nil
}

func readToken(path string) (TokenInfo, error) {
	var info TokenInfo
	text, err := os.ReadFile(path)
	if err != nil {
		return info, err
	}
	return info, json.Unmarshal(text, &info)
}

// Tokens lists the tokens that are known, the newest last.
func (a *Authority) Tokens() ([]TokenInfo, error) {
	var all []TokenInfo
	for _, dir := range []string{tokenDir, usedDir} {
		entries, err := os.ReadDir(filepath.Join(a.dir, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list tokens: %w", err)
		}
		for _, entry := range entries {
			path := filepath.Join(a.dir, dir, entry.Name())
			info, err := readToken(path)
			if err != nil {
				continue
			}
			if stat, err := os.Stat(path); dir == usedDir && err == nil {
				used := stat.ModTime().UTC().Truncate(time.Second)
				info.Used = &used
			}
			all = append(all, info)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Created.Before(all[j].Created) })
	return all, nil
}

// forgetTokens removes tokens whose end is long past.
func (a *Authority) forgetTokens() {
	for _, dir := range []string{tokenDir, usedDir} {
		entries, _ := os.ReadDir(filepath.Join(a.dir, dir))
		for _, entry := range entries {
			path := filepath.Join(a.dir, dir, entry.Name())
			if info, err := readToken(path); err == nil &&
				a.now().After(info.Expires.Add(forgetAfter)) {
				_ = os.Remove(path)
			}
		}
	}
}
