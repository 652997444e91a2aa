package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/cli/cmdutil"
)

// call runs one command line and returns what it wrote.
func call(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, t.TempDir(), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// must is call for what has to work.
func must(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errOut := call(t, args...)
	if code != cmdutil.ExitOK {
		t.Fatalf("weft %s: code %d: %s", strings.Join(args, " "), code, errOut)
	}
	return out
}

// lockedBuffer can be read while a verb writes to it.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

// serveCA runs `weft ca serve` on a free port and returns its address.
func serveCA(t *testing.T, dir string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var log lockedBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"ca", "serve", "--dir", dir, "--listen", "127.0.0.1:0"},
			t.TempDir(), &bytes.Buffer{}, &log)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != cmdutil.ExitOK {
			t.Errorf("serve ended with %d: %s", code, log.String())
		}
	})
	listens := regexp.MustCompile(`listen=(\S+)`)
	for range 3000 {
		if match := listens.FindStringSubmatch(log.String()); match != nil {
			return match[1]
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("serve does not come up: %s", log.String())
	return ""
}

func TestCAJoinAndRenew(t *testing.T) {
	dir, etc := filepath.Join(t.TempDir(), "ca"), t.TempDir()
	if out := must(t, "ca", "init", "--dir", dir, "--trust-domain",
		"td.test"); !strings.Contains(out, "Authority of td.test") {
		t.Error(out)
	}
	server := serveCA(t, dir)
	token := must(t, "ca", "token", "n1", "--dir", dir)
	file := filepath.Join(etc, "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	where := []string{"--cert", filepath.Join(etc, "node.crt"), "--key",
		filepath.Join(etc, "node.key"), "--bundle", filepath.Join(etc, "ca.crt")}
	out := must(t,
		append([]string{"ca", "join", "--server", server, "--token-file", file, "-o", "json"},
			where...)...)
	var joined struct{ ID, Serial, Cert string }
	if err := json.Unmarshal([]byte(out), &joined); err != nil ||
		joined.ID != "spiffe://td.test/node/n1" || joined.Cert != where[1] {
		t.Errorf("%s: %v", out, err)
	}
	code, _, errOut := call(t,
		append([]string{"ca", "join", "--force", "--server", server, "--token",
			strings.TrimSpace(token)}, where...)...)
	if code != cmdutil.ExitFailed || !strings.Contains(errOut, "used already") {
		t.Errorf("the token twice: %d, %s", code, errOut)
	}
	renewed := must(t, append([]string{"ca", "renew", "-o", "json"}, where...)...)
	if renewed == out || !strings.Contains(renewed, "td.test/node/n1") {
		t.Error(renewed)
	}
	if out := must(t, "ca", "show", "--dir",
		dir); !regexp.MustCompile(`(?s)n1 +used .*n1 .*renew`).MatchString(out) {
		t.Error(out)
	}
	if out := must(t, "ca", "show", "--cert", where[1]); !strings.Contains(out,
		"spiffe://td.test/node/n1") {
		t.Error(out)
	}
}

func TestCAIssue(t *testing.T) {
	dir, out := filepath.Join(t.TempDir(), "ca"), filepath.Join(t.TempDir(), "n1")
	must(t, "ca", "init", "--dir", dir)
	text := must(t, "ca", "issue", "n1", "--dir", dir, "--out", out, "--valid", "7d")
	if !strings.Contains(text, "spiffe://weft.local/node/n1") {
		t.Error(text)
	}
	if info, err := os.Stat(filepath.Join(out, "node.key")); err != nil ||
		info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if code, _, errOut := call(t, "ca", "issue", "n1", "--dir", dir, "--out",
		out); code != cmdutil.ExitFailed || !strings.Contains(errOut, "--force") {
		t.Errorf("%d, %s", code, errOut)
	}
	must(t, "ca", "issue", "n1", "--dir", dir, "--out", out, "--force")
}

func TestCAWrongCalls(t *testing.T) {
	t.Setenv(tokenEnv, "")
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"ca", "issue"}, cmdutil.ExitUsage, "accepts 1 arg"},
		{[]string{"ca", "nope"}, cmdutil.ExitUsage, "unknown command"},
		{[]string{"ca", "join", "--token", "x"}, cmdutil.ExitUsage, `"server" not set`},
		{[]string{"ca", "join", "--server", "localhost"}, cmdutil.ExitUsage, "no token"},
		{[]string{"ca", "join", "--server", "localhost", "--token", "hunter2"}, cmdutil.ExitFailed,
			"not a token"},
		{[]string{"ca", "join", "--server", "localhost", "--token", "a", "--token-file", "b"},
			cmdutil.ExitUsage, "token"},
		{[]string{"ca", "init", "--dir", dir, "--trust-domain", "A B"}, cmdutil.ExitFailed,
			"trust domain"},
		{[]string{"ca", "init", "--dir", dir, "--valid", "soon"}, cmdutil.ExitUsage, "30d"},
		{[]string{"ca", "show", "--dir", dir}, cmdutil.ExitFailed, "weft ca init"},
		{[]string{"ca", "show", "--cert", filepath.Join(dir, "none")}, cmdutil.ExitFailed,
			"no such file"},
		{[]string{"ca", "renew", "--cert", filepath.Join(dir, "none")}, cmdutil.ExitFailed,
			"--server"},
	} {
		code, _, errOut := call(t, c.args...)
		if code != c.code || !strings.Contains(errOut, c.want) {
			t.Errorf("weft %s: code %d, %s", strings.Join(c.args, " "), code, errOut)
		}
		if strings.Contains(errOut, "hunter2") {
			t.Errorf("the token is quoted: %s", errOut)
		}
	}
}
