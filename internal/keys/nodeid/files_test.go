package nodeid_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
)

func serialOf(t *testing.T, source nodeid.Source) string {
	t.Helper()
	cert, err := source.Certificate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf.SerialNumber.String()
}

func TestFiles(t *testing.T) {
	authority := nodeidtest.NewAuthority(t)
	dir := t.TempDir()
	first := authority.Node(t, "n1", nil)
	paths := authority.Write(t, dir, first)
	source, err := nodeid.NewFiles(paths)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if got := serialOf(t, source); got != first.Leaf.SerialNumber.String() {
		t.Errorf("serial %s", got)
	}
	roots, err := source.Roots(context.Background())
	if err != nil || !roots.Equal(authority.Pool) {
		t.Errorf("roots: %v", err)
	}

	// A new certificate is taken without a restart.
	second := authority.Node(t, "n1", nil)
	authority.Write(t, dir, second)
	if got := serialOf(t, source); got != second.Leaf.SerialNumber.String() {
		t.Error("the old certificate is still given")
	}
	// A half-done replacement leaves the old pair in place, and says so.
	third := authority.Node(t, "n1", nil)
	other := authority.Write(t, t.TempDir(), third)
	move(t, other.Cert, paths.Cert)
	if got := serialOf(t, source); got != second.Leaf.SerialNumber.String() {
		t.Error("a certificate without its key is given")
	}
	if source.Problem() == nil {
		t.Error("no problem is seen")
	}
	move(t, other.Key, paths.Key)
	if got := serialOf(t, source); got != third.Leaf.SerialNumber.String() ||
		source.Problem() != nil {
		t.Errorf("the new pair is not given: %v", source.Problem())
	}
	// New roots.
	move(t, nodeidtest.NewAuthority(t).Write(t, t.TempDir(), third).Bundle, paths.Bundle)
	if roots, err := source.Roots(context.Background()); err != nil || roots.Equal(authority.Pool) {
		t.Errorf("roots were not read again: %v", err)
	}
	// Deleted files: what was read goes on.
	if err := os.Remove(paths.Cert); err != nil {
		t.Fatal(err)
	}
	if got := serialOf(t, source); got != third.Leaf.SerialNumber.String() {
		t.Error("the certificate is gone with its file")
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestKeyFileModes(t *testing.T) {
	authority := nodeidtest.NewAuthority(t)
	for _, mode := range []os.FileMode{0o600, 0o400, 0o700, 0o640, 0o644, 0o604, 0o660, 0o620} {
		paths := authority.Write(t, t.TempDir(), authority.Node(t, "n1", nil))
		source, err := nodeid.NewFiles(paths)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.Certificate(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Also of a file that was good before: its key may have been read by now.
		if err := os.Chmod(paths.Key, mode); err != nil {
			t.Fatal(err)
		}
		_, err = source.Certificate(t.Context())
		if open := mode&0o077 != 0; open != errors.Is(err, nodeid.ErrKeyMode) {
			t.Errorf("mode %o: %v", mode, err)
		} else if open &&
			(!strings.Contains(err.Error(), paths.Key) ||
				!strings.Contains(err.Error(), "chmod 0600")) {
			t.Errorf("the error names neither file nor fix: %v", err)
		}
		if err := nodeid.CheckKeyFile(paths.Key); (mode&0o077 != 0) != errors.Is(err,
			nodeid.ErrKeyMode) {
			t.Errorf("CheckKeyFile: mode %o: %v", mode, err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	authority := nodeidtest.NewAuthority(t)
	leaf := authority.Node(t, "n1", nil)
	write := func(which func(nodeid.Paths) string, text string) func(nodeid.Paths) {
		return func(paths nodeid.Paths) {
			if err := os.WriteFile(which(paths), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	cert := func(p nodeid.Paths) string { return p.Cert }
	key := func(p nodeid.Paths) string { return p.Key }
	bundle := func(p nodeid.Paths) string { return p.Bundle }
	for name, c := range map[string]struct {
		spoil func(nodeid.Paths)
		want  string
	}{
		"no certificate": {func(p nodeid.Paths) { _ = os.Remove(p.Cert) }, "is not there"},
		"no key":         {func(p nodeid.Paths) { _ = os.Remove(p.Key) }, "node.key is not there"},
		"no bundle":      {func(p nodeid.Paths) { _ = os.Remove(p.Bundle) }, "ca.crt is not there"},
		"empty cert":     {write(cert, ""), "node.crt"},
		"garbage key": {write(key,
			"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), "node.key"},
		"empty bundle": {write(bundle, "# nothing\n"), "holds no certificate"},
		"leaf as root": {func(p nodeid.Paths) { text, _ := os.ReadFile(p.Cert); write(bundle, string(text))(p) }, "not an authority's"},
		"key as root":  {func(p nodeid.Paths) { text, _ := os.ReadFile(p.Key); write(bundle, string(text))(p) }, "want certificates only"},
		"huge":         {write(bundle, strings.Repeat("x", 2<<20)), "larger than"},
		"a directory":  {func(p nodeid.Paths) { _ = os.Remove(p.Cert); _ = os.Mkdir(p.Cert, 0o700) }, "is a directory"},
	} {
		paths := authority.Write(t, t.TempDir(), leaf)
		c.spoil(paths)
		source, err := nodeid.NewFiles(paths)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.Certificate(t.Context()); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOpen(t *testing.T) {
	good := nodeid.Settings{Source: "files", Paths: nodeid.Paths{Cert: "a", Key: "b", Bundle: "c"},
		TrustDomain: "td", Node: "n"}
	for name, c := range map[string]struct {
		change func(*nodeid.Settings)
		want   string
	}{
		"good": {func(*nodeid.Settings) {}, ""},
		"other source": {func(s *nodeid.Settings) { s.Source = "vault" },
			`keys.certificates.source: "vault"`},
		"no key":       {func(s *nodeid.Settings) { s.Paths.Key = "" }, "keys.certificates.key"},
		"trust domain": {func(s *nodeid.Settings) { s.TrustDomain = "A" }, "trust domain"},
		"node":         {func(s *nodeid.Settings) { s.Node = "A" }, "node"},
		"socket": {func(s *nodeid.Settings) { s.Source, s.Socket = "spire", "/run/x.sock" },
			"spireSocket"},
		"spire": {func(s *nodeid.Settings) { s.Source = "spire" }, ""},
	} {
		settings := good
		c.change(&settings)
		source, err := nodeid.Open(settings)
		if (err == nil) != (c.want == "") ||
			(err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if source != nil {
			if err := source.Close(); err != nil {
				t.Errorf("%s: close: %v", name, err)
			}
		}
	}
}

func FuzzBundle(f *testing.F) {
	authority := nodeidtest.NewAuthority(f)
	text, err := os.ReadFile(authority.Write(f, f.TempDir(), authority.Node(f, "n", nil)).Bundle)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(bytes.Repeat(text, 2))
	f.Fuzz(func(t *testing.T, text []byte) {
		roots, err := nodeid.ParseBundle(text)
		if (err == nil) != (len(roots) > 0) {
			t.Errorf("%d roots, %v", len(roots), err)
		}
	})
}
