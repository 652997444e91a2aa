package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/netns"
)

// TestSocketNonsense sends the agent's socket what makes no sense: each is answered with a
// sentence, and the agent goes on.
func TestSocketNonsense(t *testing.T) {
	l := useShared(t)
	a := l.Node("a")
	pid := a.PID()
	for _, c := range []struct {
		name, method, path, body string
		code                     int
		says                     string
	}{
		{"broken JSON", "POST", "/v1/trace", `{"from": "client", `, 400, "bad request body"},
		{"no JSON", "POST", "/v1/trace", "\x00\xff\xfe not json", 400, "bad request body"},
		{"empty body", "POST", "/v1/trace", "", 400, "empty"},
		{"unknown field", "POST", "/v1/trace", `{"frm": "client"}`, 400, "frm"},
		{"wrong type", "POST", "/v1/trace", `{"from": 7}`, 400, "from"},
		{"two objects", "POST", "/v1/trace", `{"from":"a","to":"b"}{}`, 400, "follows"},
		{"unknown pod", "POST", "/v1/trace", `{"from":"nobody","to":"10.0.0.1:1"}`, 400, "nobody"},
		{"deep nesting", "POST", "/v1/trace", strings.Repeat(`{"from":`, 20000), 400, ""},
		{"two megabytes", "POST", "/v1/trace", `{"from":"` + strings.Repeat("x", 2<<20) + `"}`, 413,
			"larger"},
		{"unknown path", "GET", "/v1/nothing", "", 404, "/v1/nothing"},
		{"path of another version", "GET", "/v9/status", "", 404, "/v9/status"},
		{"wrong method", "DELETE", "/v1/status", "", 405, "GET"},
		{"unknown parameter", "GET", "/v1/status?verbose=1", "", 400, "verbose"},
		{"bad parameter", "GET", "/v1/flowtable?limit=many", "", 400, "many"},
		{"broken JSON to the CNI door", "POST", "/v1/cni/add", `{"containerID": `, 400, ""},
		{"unknown CNI verb", "POST", "/v1/cni/explode", `{}`, 404, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, body := request(t, a.Socket, c.method, c.path, c.body)
			var answer map[string]any
			if code != c.code || json.Unmarshal(body, &answer) != nil ||
				!strings.Contains(string(body), c.says) {
				t.Errorf("%d %.300s, want %d and JSON that says %q", code, body, c.code, c.says)
			}
		})
	}
	if _, err := admin.NewClient(a.Socket).Ready(t.Context()); err != nil || a.PID() != pid {
		t.Errorf("the agent was pid %d and is %d now: %v", pid, a.PID(), err)
	}
}

// request sends one and reads the answer. A body that is refused before its end may have the
// connection closed under the writer, and the answer lost with it: that is tried again.
func request(t *testing.T, socket, method, path, body string) (code int, answer []byte) {
	t.Helper()
	var err error
	for range 20 {
		code, answer, err = requestOnce(t, socket, method, path, body)
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return code, answer
}

func requestOnce(t *testing.T, socket, method, path, body string) (int, []byte, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://weft"+path,
		strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	answer, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	var text bytes.Buffer
	_, err = text.ReadFrom(answer.Body)
	return answer.StatusCode, text.Bytes(), err
}

const badObjects = `apiVersion: weft.dev/v1alpha1
kind: Node
metadata: {name: good-before}
spec: {addresses: [192.0.2.201], podCIDRs: [10.77.201.0/24]}
---
apiVersion: weft.dev/v1alpha1
kind: Node
metadata: {name: bad}
spec:
  addresses: [192.0.2.202]
  podCIDRs: [10.77.202.0/99]
---
apiVersion: weft.dev/v1alpha1
kind: Node
metadata: {name: good-after}
spec: {addresses: [192.0.2.203], podCIDRs: [10.77.203.0/24]}
`

// TestBadObjects puts wrong objects among good ones: the wrong are named with file, line and field
// by log and `weft status`; the good ones apply, and traffic goes on.
func TestBadObjects(t *testing.T) {
	l := useShared(t)
	a := l.Node("a")
	load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
	mark := logSize(t, a)
	put := func(name, text string) string {
		path := filepath.Join(l.ObjectsDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(path) })
		return path
	}
	put("bad-objects.yaml", badObjects)
	put("broken.yaml", "apiVersion: weft.dev/v1alpha1\nkind: [Node\n")
	put("unknown-field.yaml",
		"apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: typo}\nspec:\n  adresses: [192.0.2.204]\n")
	wants := []string{"bad-objects.yaml:11: spec.podCIDRs[0]", "broken.yaml:2",
		"unknown-field.yaml:5: spec.adresses"}
	eventually(t, "the wrong objects to be named", func() error {
		text := ""
		for _, e := range status(t, a).Store.Errors {
			text += e.Error() + "\n"
		}
		for _, want := range wants {
			if !strings.Contains(text, want) {
				return fmt.Errorf("no %q in:\n%s", want, text)
			}
		}
		return nil
	})
	eventually(t, "the good objects to apply", func() error {
		nodes, err := admin.NewClient(a.Socket).Nodes(t.Context())
		if err != nil {
			return err
		}
		text := fmt.Sprint(nodes)
		if !strings.Contains(text, "good-before") || !strings.Contains(text, "good-after") ||
			strings.Contains(text, "{bad ") {
			return fmt.Errorf("nodes: %s", text)
		}
		return nil
	})
	stdout, stderr, _ := weft(t, "status", "--instance", a.Instance)
	for _, want := range wants {
		if !strings.Contains(stdout+stderr, want) {
			t.Errorf("`weft status` does not name %q:\n%s%s", want, stdout, stderr)
		}
		if text := logSince(t, a, mark); !strings.Contains(text, want) {
			t.Errorf("the log does not name %q:\n%s", want, text)
		}
	}
	load.nothingLost(t)
}

// TestSecondAgent starts another agent on an instance that has one: it refuses and names the first.
func TestSecondAgent(t *testing.T) {
	l := useShared(t)
	a := l.Node("a")
	load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
	was := pins(t, l)
	_, stderr, code := runIn(t, a.NetNS, command(weftBinary, "agent", "--config", a.ConfigFile))
	if code != 1 || !strings.Contains(stderr, fmt.Sprintf("pid %d", a.PID())) {
		t.Errorf("exit code %d, says %q: want 1 and pid %d", code, stderr, a.PID())
	}
	_, stderr, code = runIn(t, a.NetNS,
		command(weftBinary, "agent", "cleanup", "--config", a.ConfigFile))
	if code != 1 || !strings.Contains(stderr, "stop it first") ||
		!strings.Contains(stderr, fmt.Sprintf("pid %d", a.PID())) {
		t.Errorf("cleanup under a running agent: exit code %d, says %q", code, stderr)
	}
	if is := pins(t, l); fmt.Sprint(is) != fmt.Sprint(was) {
		t.Errorf("links were %v and are %v", was, is)
	}
	load.nothingLost(t)
}

// sentence wants a clear refusal: the exit code, the words, and no stack trace.
func sentence(t *testing.T, what, text string, code, wantCode int, words ...string) {
	t.Helper()
	if code != wantCode {
		t.Errorf("%s: exit code %d, not %d: %s", what, code, wantCode, text)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s says %q: no word of %q", what, text, word)
		}
	}
	if strings.Contains(text, "goroutine ") || strings.Contains(text, "panic") {
		t.Errorf("%s ended with a stack trace: %s", what, text)
	}
}

// TestNotRoot runs what needs root without it.
func TestNotRoot(t *testing.T) {
	l := useShared(t)
	config := filepath.Join(scratch, "agent.yaml")
	if err := os.WriteFile(config, []byte("node: a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	readable := readableBinaries(t)
	for _, c := range []struct {
		args  []string
		code  int
		words []string
	}{
		{[]string{"agent", "--config", config}, 1, []string{"root"}},
		{[]string{"agent", "cleanup", "--config", config}, 1, []string{"root"}},
		{[]string{"lab", "up"}, 1, []string{"root"}},
		{[]string{"status", "--instance", l.Node("a").Instance}, 3, []string{"root"}},
		{[]string{"endpoint", "list", "--instance", l.Node("a").Instance}, 3, []string{"root"}},
		{[]string{"version"}, 0, nil},
		{[]string{"config", "example"}, 0, nil},
	} {
		cmd := exec.Command(readable, c.args...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534,
			Gid: 65534}}
		var out, errOut bytes.Buffer
		code := runCommand(t, cmd, &out, &errOut)
		sentence(t, fmt.Sprintf("%v as nobody", c.args), errOut.String(), code, c.code, c.words...)
	}
}

// readableBinaries copies weft and weft-lab to where everybody may run them, and names weft.
func readableBinaries(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(scratch, "for-all")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"weft-lab", "weft"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(weftBinary), name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "weft")
}

// TestUnknownKey gives the agent a configuration with a mistyped key.
func TestUnknownKey(t *testing.T) {
	config := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(config, []byte("node: a\nmode: auto\nflows:\n  maxEntrys: 4096\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := weft(t, "agent", "--config", config)
	sentence(t, "an unknown key", stderr, code, 1, config+":4", "maxEntrys", "maxEntries")
	_, stderr, code = weft(t, "agent", "--config", config+".not-there")
	sentence(t, "a missing file", stderr, code, 1, config+".not-there")
}

// TestNoBPFFS starts agents where /sys/fs/bpf is no bpffs: with something else in the way they
// refuse and say what to do; where nothing is, they mount one.
func TestNoBPFFS(t *testing.T) {
	name := labPrefix + "-nobpffs"
	ns, err := netns.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Delete(name) })
	dir := t.TempDir()
	config := filepath.Join(dir, "agent.yaml")
	text := fmt.Sprintf("node: a\ninstance: %s\nstore: {dir: %s}\npaths: {state: %s, run: %s}\nmetrics: {listen: \"\"}\n", name, dir, dir+"/state", dir+"/run")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	hide := func(then string) *exec.Cmd {
		cmd := command("sh", "-c", then, "sh", weftBinary, config)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		return cmd
	}
	t.Run("something else there", func(t *testing.T) {
		_, stderr, code := runIn(t, ns,
			hide(`mount -t tmpfs none /sys/fs/bpf && touch /sys/fs/bpf/x && exec "$1" agent --config "$2"`))
		sentence(t, "an agent without bpffs", stderr, code, 1, "bpffs",
			"mount -t bpf bpf /sys/fs/bpf")
	})
	t.Run("nothing there", func(t *testing.T) {
		// There is no Node object, so the agent waits for it, and says so; then it is stopped.
		cmd := hide(`mount -t tmpfs none /sys/fs/bpf && exec "$1" agent --config "$2"`)
		var errOut safeBuffer
		cmd.Stderr = &errOut
		if err := netns.Do(ns, cmd.Start); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the agent to mount a bpffs and go on", func() error {
			if text := errOut.String(); !strings.Contains(text, "mounted one") ||
				!strings.Contains(text, "Node object a") {
				return fmt.Errorf("it says %s", text)
			}
			return nil
		})
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("stopped by SIGTERM: %v: %s", err, errOut.String())
		}
	})
	t.Run("read-only there", func(t *testing.T) {
		_, stderr, code := runIn(t, ns,
			hide(`umount /sys/fs/bpf; while umount /sys/fs/bpf 2>/dev/null; do :; done; mount -t tmpfs -o ro none /sys/fs && exec "$1" agent --config "$2"`))
		sentence(t, "an agent without /sys/fs/bpf", stderr, code, 1, "bpffs")
	})
}
