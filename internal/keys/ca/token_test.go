package ca

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
)

func TestTokensAreKeptAsHashes(t *testing.T) {
	a := newAuthority(t)
	text := newToken(t, a, "n1")
	parsed, err := parseToken(text)
	if err != nil || parsed.node != "n1" || !bytes.Equal(parsed.pin, pinOf(a.root)) {
		t.Fatalf("%+v, %v", parsed, err)
	}
	err = filepath.WalkDir(a.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		held, err := os.ReadFile(path)
		for _, form := range []string{text, string(parsed.secret),
			base64.RawURLEncoding.EncodeToString(parsed.secret)} {
			if bytes.Contains(held, []byte(form)) || strings.Contains(path, form) {
				t.Errorf("%s holds the token", path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTokensThatAreNone(t *testing.T) {
	a := newAuthority(t)
	good := newToken(t, a, "n1")
	for name, text := range map[string]string{
		"empty": "", "a word": "hunter2", "cut": good[:len(good)-3],
		"no prefix": strings.TrimPrefix(good, tokenPrefix),
		"one letter other": strings.Replace(good, good[20:21],
			map[bool]string{true: "B", false: "A"}[good[20:21] == "A"], 1),
		"longer":   good + "AA",
		"bad name": (&token{pin: make([]byte, 32), secret: make([]byte, 32), node: "N"}).String(),
	} {
		if _, err := parseToken(text); !errors.Is(err, ErrTokenMalformed) ||
			(len(text) > 10 && strings.Contains(err.Error(), text)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := parseToken("  " + good + "\n"); err != nil {
		t.Errorf("with blanks around it: %v", err)
	}
	for _, valid := range []time.Duration{0, -time.Hour, 31 * 24 * time.Hour} {
		if _, _, err := a.NewToken("n1", valid); err == nil {
			t.Errorf("valid for %v is taken", valid)
		}
	}
	if _, _, err := a.NewToken("N1", time.Hour); err == nil {
		t.Error("a bad name is taken")
	}
}

func FuzzToken(f *testing.F) {
	f.Add((&token{pin: make([]byte, 32), secret: make([]byte, 32), node: "n1"}).String())
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := parseToken(text)
		if err == nil && parsed.String() != strings.TrimSpace(text) {
			// Only base64's spare bits may differ.
			if again, err := parseToken(parsed.String()); err != nil || again.node != parsed.node {
				t.Errorf("%q became %q", text, parsed)
			}
		}
	})
}

func TestTokenRefusals(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	server := serve(t, a, DefaultValid)
	join := func(token, server string) error {
		_, err := Join(t.Context(),
			JoinOptions{Server: server, Token: token, Paths: pathsIn(t.TempDir())})
		return err
	}
	// Another authority's token: its pin is not this server's root. The secret is not even said.
	if err := join(newToken(t, other, "n1"), server); !errors.Is(err, ErrPin) {
		t.Errorf("wrong pin: %v", err)
	}
	// One that this authority never made.
	if err := join((&token{pin: pinOf(a.root), secret: make([]byte, 32), node: "n1"}).String(),
		server); !errors.Is(err, ErrTokenUnknown) {
		t.Errorf("unknown: %v", err)
	}
	// The name in the token is only the node's word; the authority's own note counts.
	text := newToken(t, a, "n1")
	parsed, _ := parseToken(text)
	parsed.node = "n2"
	if err := join(parsed.String(), server); !errors.Is(err, nodeid.ErrWrongNode) {
		t.Errorf("wrong name: %v", err)
	}
	// That did not spend it.
	if err := join(text, server); err != nil {
		t.Errorf("after a wrong name: %v", err)
	}
	// Expired: by the authority's clock.
	late := newToken(t, other, "n1")
	other.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if err := join(late, serve(t, other, DefaultValid)); err == nil {
		t.Error("expired token is taken")
	}
	parsed, _ = parseToken(late)
	if _, err := other.checkToken(parsed.secret); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("expired: %v", err)
	}
	// Long after its end it is forgotten.
	other.now = func() time.Time { return time.Now().Add(30 * 24 * time.Hour) }
	newToken(t, other, "n9")
	if tokens, err := other.Tokens(); err != nil || len(tokens) != 1 || tokens[0].Node != "n9" {
		t.Errorf("tokens %+v, %v", tokens, err)
	}
	if err := join(text, "127.0.0.1:1"); err == nil || errors.Is(err, ErrPin) {
		t.Errorf("nobody there: %v", err)
	}
	for _, bad := range []string{"", "host:0", "host:99999", "host:x", "a:b:c:d:e:f:g:h:i:1x"} {
		if err := join(text, bad); err == nil {
			t.Errorf("server %q is taken", bad)
		}
	}
}

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"ca.example": "ca.example:4552", "ca.example:1": "ca.example:1",
		"192.0.2.1": "192.0.2.1:4552", "::1": "[::1]:4552", "[::1]": "[::1]:4552",
		"[::1]:9": "[::1]:9", "": "", ":1": "", "a:0": "", "a:b": "", "a:70000": "",
	} {
		if got, err := address(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

// A token is not spent when what it gives could not be kept.
func TestTokenSurvivesABadDirectory(t *testing.T) {
	a := newAuthority(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	options := JoinOptions{Server: serve(t, a, DefaultValid), Token: newToken(t, a, "n1"),
		Paths: pathsIn(filepath.Join(file, "etc"))}
	if _, err := Join(t.Context(), options); err == nil {
		t.Error("joined into a file")
	}
	options.Paths = pathsIn(t.TempDir())
	if _, err := Join(t.Context(), options); err != nil {
		t.Error(err)
	}
}

func TestExpiredTokenByName(t *testing.T) {
	a := newAuthority(t)
	text := newToken(t, a, "n1")
	// The record says when, so its end can be moved here without moving the server's clock and with
	// it its certificate.
	parsed, _ := parseToken(text)
	path := filepath.Join(a.dir, tokenDir, hashSecret(parsed.secret))
	info, err := readToken(path)
	if err != nil {
		t.Fatal(err)
	}
	info.Expires = time.Now().Add(-time.Minute)
	record, _ := json.Marshal(info)
	if err := os.WriteFile(path, record, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Join(t.Context(),
		JoinOptions{Server: serve(t, a, DefaultValid), Token: text, Paths: pathsIn(t.TempDir())})
	if !errors.Is(err, ErrTokenExpired) {
		t.Errorf("%v", err)
	}
}

// Of many that use one token at once, one gets a certificate.
func TestTokenRace(t *testing.T) {
	a := newAuthority(t)
	server, text := serve(t, a, DefaultValid), newToken(t, a, "n1")
	var all sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 12 {
		dir := t.TempDir()
		all.Go(func() {
			_, err := Join(t.Context(),
				JoinOptions{Server: server, Token: text, Paths: pathsIn(dir)})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.Is(err, ErrTokenUsed) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won != 1 {
		t.Errorf("%d got a certificate", won)
	}
}
