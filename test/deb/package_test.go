// Package deb tests the Debian package: that it is the same for the same commit, and that what
// docs/install.md says works, typed on two machines with systemd.
package deb

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"weft.dev/weft/test/labtest"
)

const root = "../.."

// binary is what is packed, built once.
var binary = sync.OnceValues(func() (string, error) { return labtest.Binary(built) })

// built is a directory for it.
var built string

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "weft-deb-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(built) //nolint:errcheck // a directory for temporary files
	os.Exit(code)
}

// build makes a package of a version, with more in the environment. It is not compressed, which
// takes long.
func build(t *testing.T, out, version string, env ...string) string {
	t.Helper()
	weft, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("packaging/deb/build", filepath.Dir(weft), out)
	cmd.Dir = root
	cmd.Env = append(append(os.Environ(), "DEB_COMPRESS=none", "VERSION="+version,
		"SOURCE_DATE_EPOCH=1795729000"), env...)
	cmd.Stderr = os.Stderr
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("build the package: %v", err)
	}
	return strings.TrimSpace(string(path))
}

func TestVersion(t *testing.T) {
	// In the order in which dpkg has to see them.
	rows := [][2]string{
		{"0123abc-dirty", "0~git20261126.213640.0123abc.dirty"},
		{"dev", "0~git20261126.213640.dev"},
		{"v1.2.0-rc1", "1.2.0~rc1"},
		{"v1.2.0-rc1-2-gabc1234", "1.2.0~rc1+2.gabc1234"},
		{"v1.2.0", "1.2.0"},
		{"v1.2.0-dirty", "1.2.0+dirty"},
		{"v1.2.1-4-gabc1234", "1.2.1+4.gabc1234"},
		{"v1.2.1-4-gabc1234-dirty", "1.2.1+4.gabc1234.dirty"},
		{"v1.2.1-12-gabc1234", "1.2.1+12.gabc1234"},
		{"v1.10.0", "1.10.0"},
	}
	before := "0~"
	for _, row := range rows {
		out, err := exec.Command(root+"/packaging/deb/version", row[0], "1795729000").Output()
		got := strings.TrimSpace(string(out))
		if err != nil || got != row[1] {
			t.Errorf("%s is %q (%v), want %s", row[0], got, err, row[1])
		}
		if err := exec.Command("dpkg", "--compare-versions", before, "lt", got).Run(); err != nil {
			t.Errorf("%s does not sort after %s", got, before)
		}
		before = got
	}
}

// TestReproducible builds twice, as different people would.
func TestReproducible(t *testing.T) {
	first := build(t, t.TempDir(), "v1.0.0", "TZ=Asia/Tokyo", "LC_ALL=C.UTF-8")
	second := build(t, t.TempDir(), "v1.0.0", "TZ=America/New_York", "LC_ALL=C",
		"TMPDIR="+t.TempDir(), "USER=somebody")
	a, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("%s and %s differ: diffoscope tells where", first, second)
	}
	out, err := exec.Command("dpkg-deb", "--contents", first).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, " root/root ") ||
			!strings.Contains(line, " 2026-11-26 21:36 ") && os.Getenv("TZ") == "UTC" {
			t.Errorf("not root's, or of another time: %s", line)
		}
	}
}

// TestUnit: systemd takes every line of the unit.
func TestUnit(t *testing.T) {
	dir := t.TempDir()
	deb := build(t, dir, "v1.0.0")
	tree := filepath.Join(dir, "tree")
	if out, err := exec.Command("dpkg-deb", "-x", deb, tree).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// Without a root of its own, for the targets that it is ordered by.
	unit := filepath.Join(tree, "usr/lib/systemd/system/weft.service")
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	placed := strings.ReplaceAll(string(text), "/usr/bin/weft",
		filepath.Join(tree, "usr/libexec/weft/weft"))
	placed = strings.ReplaceAll(placed, "man:weft(8) ", "")
	if err := os.WriteFile(unit, []byte(placed), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) != 0 {
		t.Errorf("%v: %s", err, out)
	}
	for _, page := range []string{"weft", "weft-agent", "weft-preflight", "weft-encrypt-verify"} {
		if _, err := os.Stat(fmt.Sprintf("%s/usr/share/man/man8/%s.8.gz", tree, page)); err != nil {
			t.Error(err)
		}
	}
}
