package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config/strictyaml"
	"weft.dev/weft/internal/store"
)

func node(name string, n int) string {
	return fmt.Sprintf("apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata:\n  name: %s\nspec:\n  addresses: [10.0.0.%d]\n  podCIDRs: [10.1.%d.0/24]\n", name, n, n)
}

func endpoint(ns, name, node string) *v1alpha1.Endpoint {
	return &v1alpha1.Endpoint{
		Metadata: v1alpha1.ObjectMeta{Namespace: ns, Name: name},
		Spec:     v1alpha1.EndpointSpec{NodeName: node, Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.7"), netip.MustParseAddr("fd00::7")}},
	}
}

// tree makes files by name; a name that ends in "/" is a directory.
func tree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			must(t, os.MkdirAll(path, 0o755))
			continue
		}
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	must(t, err)
	return d
}

func snapshot(t *testing.T, d *Dir) *store.Snapshot {
	t.Helper()
	s, err := d.Snapshot()
	must(t, err)
	return s
}

// wantErrors wants errors that begin with what is wanted after the directory.
func wantErrors(t *testing.T, s *store.Snapshot, dir string, want ...string) {
	t.Helper()
	var got []string
	for _, e := range s.Errors {
		got = append(got, strings.TrimPrefix(e.Error(), dir+"/"))
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("errors\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func wantKeys[V any](t *testing.T, got map[string]V, want ...string) {
	t.Helper()
	if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, want) {
		t.Errorf("objects %q, want %q", keys, want)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"file": ""})
	tests := []struct{ path, want string }{
		{"objects", `store.dir: "objects": want an absolute path`},
		{dir + "/new", ""},
		{dir + "/new", ""},
		{dir + "/a/b", "store.dir: " + dir + "/a/b is missing, and so is the directory around it: make it (mkdir -p " + dir + "/a/b)"},
		{dir + "/file", "store.dir: " + dir + "/file is not a directory"},
		{dir + "/file/x", "store.dir: " + dir + "/file/x is missing and cannot be made: "},
	}
	for _, tt := range tests {
		_, err := Open(tt.path)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want)) {
			t.Errorf("open %s: %v, want %q", tt.path, err, tt.want)
		}
	}
}

func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{
		"b.yaml":               node("b", 2),
		"a.yml":                node("a", 1) + "---\n" + strings.Replace(node("x", 9), "podCIDRs", "podcidrs", 1),
		"team/c.yaml":          node("c", 3),
		"team/deeper/d.yaml":   node("too-deep", 4),
		".hidden.yaml":         node("hidden", 5),
		".hidden/e.yaml":       node("hidden", 5),
		"new.yaml.tmp":         node("temporary", 6),
		"README.md":            "no object",
		"broken.yaml":          "a: [",
		"huge.yaml":            "#" + strings.Repeat("x", strictyaml.MaxSize),
		"empty.yaml":           "",
		"looks-like-one.yaml/": "",
		"dup1.yaml":            node("dup", 7),
		"dup2.yaml":            node("dup", 8),
	})
	d := open(t, dir)
	s := snapshot(t, d)
	wantKeys(t, s.Nodes, "a", "b", "c")
	wantErrors(t, s, dir,
		`a.yml:15: spec.podcidrs: unknown key: did you mean "podCIDRs"?`,
		"broken.yaml:1: not valid YAML",
		`dup1.yaml:4: metadata.name: Node "dup" is also declared at `+dir+"/dup2.yaml:1",
		`dup2.yaml:4: metadata.name: Node "dup" is also declared at `+dir+"/dup1.yaml:1",
		"huge.yaml: larger than 1048576 bytes: split it")

	// From the cache it is the same, and changes are seen nevertheless.
	must(t, os.WriteFile(dir+"/b.yaml", []byte(node("e", 2)), 0o644)) // same size
	must(t, os.Remove(dir+"/dup1.yaml"))
	wantKeys(t, snapshot(t, d).Nodes, "a", "c", "dup", "e")
}

func TestCacheKeepsObjects(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"a.yaml": node("a", 1)})
	d := open(t, dir)
	snapshot(t, d)
	c := d.cache[dir+"/a.yaml"]
	c.read = c.read.Add(2 * settled) // as if it had been read long after it was written
	d.cache[dir+"/a.yaml"] = c
	first := snapshot(t, d).Nodes["a"]
	if second := snapshot(t, d).Nodes["a"]; first != second {
		t.Error("an unchanged file was read again")
	}
	must(t, os.WriteFile(dir+"/a.yaml", []byte(node("b", 1)), 0o644))
	wantKeys(t, snapshot(t, d).Nodes, "b")
}

func TestUnusualFiles(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	tree(t, outside, map[string]string{"linked.yaml": node("linked", 1), "many/in-linked-dir.yaml": node("in-linked-dir", 2)})
	must(t, syscall.Mkfifo(dir+"/pipe.yaml", 0o644))
	must(t, os.Symlink(outside+"/linked.yaml", dir+"/link.yaml"))
	must(t, os.Symlink(outside+"/many", dir+"/dirlink"))
	must(t, os.Symlink("nowhere", dir+"/dangling.yaml"))
	must(t, os.Symlink("loop.yaml", dir+"/loop.yaml"))
	must(t, os.Symlink("/dev/null", dir+"/null.yaml"))
	l, err := net.Listen("unix", dir+"/socket.yaml")
	must(t, err)
	defer l.Close()
	s := snapshot(t, open(t, dir))
	wantKeys(t, s.Nodes, "in-linked-dir", "linked")
	wantErrors(t, s, dir,
		"dangling.yaml: is a symbolic link to nothing",
		"loop.yaml: cannot be read: too many levels of symbolic links",
		"null.yaml: is a device, not a regular file",
		"pipe.yaml: is a named pipe, not a regular file",
		"socket.yaml: is a socket, not a regular file")
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"secret.yaml": node("a", 1), "closed/x.yaml": node("b", 2), "c.yaml": node("c", 3)})
	must(t, os.Chmod(dir+"/secret.yaml", 0))
	must(t, os.Chmod(dir+"/closed", 0))
	defer os.Chmod(dir+"/closed", 0o755)
	d := open(t, dir)
	if os.Geteuid() == 0 {
		must(t, os.Chmod(filepath.Dir(dir), 0o755)) // others may go through
		defer asNobody(t)()
	}
	s := snapshot(t, d)
	wantKeys(t, s.Nodes, "c")
	wantErrors(t, s, dir, "closed: directory cannot be read: permission denied", "secret.yaml: cannot be read: permission denied")
}

// asNobody takes root's right to read everything from this thread, until the
// function that it returns is called.
func asNobody(t *testing.T) func() {
	t.Helper()
	runtime.LockOSThread()
	setfsuid := func(uid uintptr) {
		syscall.RawSyscall(syscall.SYS_SETFSUID, uid, 0, 0) // never fails, returns the uid before
	}
	setfsuid(65534)
	return func() {
		setfsuid(0)
		runtime.UnlockOSThread()
	}
}

func TestPublish(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	must(t, d.DeleteEndpoint("shop/none"))
	for range 2 {
		must(t, d.PutEndpoint(endpoint("shop", "web", "n")))
	}
	must(t, d.PutEndpoint(endpoint("", "plain", "n")))
	s := snapshot(t, d)
	wantKeys(t, s.Endpoints, "default/plain", "shop/web")
	wantErrors(t, s, dir)
	if e := s.Endpoints["shop/web"]; e.Kind != v1alpha1.KindEndpoint || len(e.Spec.Addresses) != 2 || e.Spec.ServiceAccount != "default" {
		t.Errorf("published as %+v", e)
	}
	if _, err := os.Stat(dir + "/endpoints/shop--web.yaml"); err != nil {
		t.Error(err)
	}
	moved := endpoint("shop", "web", "n2")
	must(t, d.PutEndpoint(moved))
	if e := snapshot(t, d).Endpoints["shop/web"]; e.Spec.NodeName != "n2" {
		t.Errorf("not replaced: %+v", e)
	}
	for _, key := range []string{"shop/web", "shop/web", "plain"} {
		must(t, d.DeleteEndpoint(key))
	}
	left, err := os.ReadDir(dir + "/endpoints")
	must(t, err)
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPublishRefuses(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	err := d.PutEndpoint(&v1alpha1.Endpoint{Metadata: v1alpha1.ObjectMeta{Namespace: "../x", Name: "a/b"}})
	for _, want := range []string{`publish endpoint "../x/a/b"`, "metadata.name", "metadata.namespace", "spec.nodeName", "spec.addresses"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v without %s", err, want)
		}
	}
	for _, key := range []string{"", "../../x", "a/../b", "a/b/c", "/x"} {
		if err := d.DeleteEndpoint(key); err == nil {
			t.Errorf("key %q taken", key)
		}
	}
}

func TestDeleteLeavesOthers(t *testing.T) {
	dir := t.TempDir()
	a, b, restarted := open(t, dir), open(t, dir), open(t, dir)
	restarted.SetOwner("a")
	must(t, a.PutEndpoint(endpoint("shop", "web", "a")))
	must(t, b.PutEndpoint(endpoint("shop", "web", "b"))) // the pod moved
	must(t, a.DeleteEndpoint("shop/web"))
	must(t, restarted.DeleteEndpoint("shop/web"))
	wantKeys(t, snapshot(t, a).Endpoints, "shop/web")
	must(t, b.DeleteEndpoint("shop/web"))
	wantKeys(t, snapshot(t, a).Endpoints)
}

func TestFileNamesDiffer(t *testing.T) {
	long := strings.Repeat("a.", 120)
	seen := map[string]string{}
	for _, key := range []string{"a/b", "a/b--c", "a--b/c", "a--b/c--d", "a/b--c--d", "a--b--c/d", "x/" + long + "b", "x/" + long + "c"} {
		ns, name, _ := strings.Cut(key, "/")
		f := fileName(ns, name)
		if other, ok := seen[f]; ok || len(f) > 255 {
			t.Errorf("%s and %s are both %s", key, other, f)
		}
		seen[f] = key
	}
}

func TestStaleTemps(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir, map[string]string{"endpoints/.put-1.tmp": "", "endpoints/.put-2.tmp": "", "endpoints/mine.tmp": ""})
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(dir+"/endpoints/.put-1.tmp", old, old))
	must(t, os.Chtimes(dir+"/endpoints/mine.tmp", old, old))
	open(t, dir)
	left, err := filepath.Glob(dir + "/endpoints/*")
	must(t, err)
	hidden, err := filepath.Glob(dir + "/endpoints/.*")
	must(t, err)
	if got := fmt.Sprint(left, hidden); !strings.Contains(got, ".put-2.tmp") || !strings.Contains(got, "mine.tmp") || strings.Contains(got, ".put-1.tmp") {
		t.Errorf("left %s", got)
	}
}

func TestConcurrentPublish(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 4 {
		d := open(t, dir)
		wg.Go(func() {
			for j := range 10 {
				if err := d.PutEndpoint(endpoint("ns", fmt.Sprintf("pod-%d", j), fmt.Sprintf("node-%d", i))); err != nil {
					t.Error(err)
				}
				s, err := d.Snapshot()
				if err != nil || len(s.Errors) > 0 {
					t.Errorf("%v %v", s, err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(snapshot(t, open(t, dir)).Endpoints); n != 10 {
		t.Errorf("%d endpoints", n)
	}
}

func TestSnapshotOfMissing(t *testing.T) {
	d := open(t, t.TempDir()+"/objects")
	must(t, os.Remove(d.Path()))
	_, err := d.Snapshot()
	if err == nil || !strings.HasPrefix(err.Error(), "store.dir: "+d.Path()+" is missing") {
		t.Error(err)
	}
	if err := d.Watch(context.Background(), func(store.Delta) { t.Error("called") }); err == nil {
		t.Error("watched nothing")
	}
	if err := d.PutEndpoint(endpoint("a", "b", "c")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestLastGoodVersion: no way of losing a file's contents by accident takes its objects out of use;
// removing it does.
func TestLastGoodVersion(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, path string)
	}{
		{"typo", func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte(node("a", 1)+"oops: 1\n"), 0o644)) }},
		{"empty", func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) }},
		{"too large", func(t *testing.T, path string) { must(t, os.Truncate(path, 2<<20)) }},
		{"a pipe in its place", func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, syscall.Mkfifo(path, 0o644))
		}},
		{"a link to nothing in its place", func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, os.Symlink("nothing", path))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tree(t, dir, map[string]string{"nodes/a.yaml": node("a", 1), "b.yaml": node("b", 2)})
			d := open(t, dir)
			wantKeys(t, snapshot(t, d).Nodes, "a", "b")
			tt.spoil(t, dir+"/nodes/a.yaml")
			for range 2 {
				s := snapshot(t, d)
				wantKeys(t, s.Nodes, "a", "b")
				if len(s.Errors) < 2 {
					t.Errorf("errors %v: want the mistake, and what stays in use", s.Errors)
				}
			}
			must(t, os.Remove(dir+"/nodes/a.yaml"))
			s := snapshot(t, d)
			wantKeys(t, s.Nodes, "b")
			wantErrors(t, s, dir)
		})
	}
}

// TestNetworkFileSystem: which file systems are the network's.
func TestNetworkFileSystem(t *testing.T) {
	if got := open(t, "/proc").Network(); got != "" {
		t.Errorf("/proc is on %s", got)
	}
	for magic, want := range map[uint32]string{0x6969: "NFS", 0xFE534D42: "SMB", 0xEF53: "" /* ext4 */, 0x01021994: "" /* tmpfs */} {
		if got := networkFileSystems[magic]; got != want {
			t.Errorf("%#x is %q, want %q", magic, got, want)
		}
	}
}
