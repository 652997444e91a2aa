package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	etcdtest "weft.dev/weft/test/etcd"
)

const (
	objectNode = "apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: a}\nspec: {addresses: [192.0.2.1], podCIDRs: [10.1.0.0/24]}\n"
	objectPod  = "apiVersion: weft.dev/v1alpha1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {}\n"
)

// TestObjects edits a store as an administrator does: a directory and etcd alike.
func TestObjects(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) (yaml string){
		"directory": func(t *testing.T) string { return fmt.Sprintf("{dir: %q}", t.TempDir()) },
		"etcd": func(t *testing.T) string {
			return fmt.Sprintf("{etcd: {endpoints: [%q]}}",
				etcdtest.Start(t, etcdtest.Options{}).Endpoints()[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cfg, file := filepath.Join(dir, "agent.yaml"), filepath.Join(dir, "objects.yaml")
			write(t, cfg, "node: a\nstore: "+store(t)+"\n")
			for n, row := range []struct {
				file, call string
				code       int
				out, err   string
			}{
				{"", "get node", 0, "there is no Node\n", ""},
				{objectNode + "---\n" + objectPod, "apply -f FILE", 0,
					"Node a created\nPod shop/web created\n", ""},
				{objectNode, "apply -f FILE", 0, "Node a configured\n", ""},
				{objectNode, "apply -f FILE -o json", 0, `"result": "configured"`, ""},
				{"", "get node", 0, "NAME  LABELS  WHAT\na     -       192.0.2.1; 10.1.0.0/24\n",
					""},
				{"", "get Pod shop/web -o yaml", 0,
					"kind: Pod\nmetadata:\n  name: web\n  namespace: shop\n", ""},
				{"", "get pod -o json", 0, `"serviceAccount": "default"`, ""},
				{"", "get pod web", 1, "", "get Pod web: not found"},
				// What is wrong is refused before anything is written.
				{strings.Replace(objectNode, "{name: a}", "{name: b}", 1), "apply -f FILE", 1, "",
					"FILE:4: spec.addresses[0]: 192.0.2.1 is also the address of node \"a\", which was there first"},
				{strings.Replace(objectPod, "web", "db", 1) + "---\n" +
					strings.Replace(objectNode, "spec", "sepc", 1), "apply -f FILE", 1, "",
					"FILE:9: sepc: unknown key"},
				{"", "get pod shop/db", 1, "", "not found"},
				{objectPod + "---\n" +
					strings.Replace(objectPod, "spec: {}", "spec: {nodeName: b}", 1),
					"apply -f FILE", 1, "",
					"FILE:3: metadata.name: Pod \"shop/web\" is also declared at FILE:"},
				{strings.Replace(objectPod, "Pod", "Endpoint", 1) + "  ", "apply -f FILE", 1, "",
					"FILE:4: spec.addresses: is missing"},
				{"apiVersion: weft.dev/v1alpha1\nkind: Identity\nmetadata: {name: \"5000\"}\nspec: {spiffeID: spiffe://weft.local/ns/shop/sa/web}\n", "apply -f FILE", 1, "", "kind: is Identity, which agents write: take it away"},
				{"# nothing\n", "apply -f FILE", 1, "", "there is no object in FILE"},
				{"", "delete pod shop/web", 0, "Pod shop/web deleted\n", ""},
				{"", "delete pod shop/web", 1, "", "delete Pod shop/web: not found"},
				{"", "delete epoch epoch-1", 2, "", "epochs are removed by agents alone"},
				{"", "get nodes", 2, "", `"nodes" is no kind of object: use one of node, pod,`},
				{"", "apply", 2, "", `required flag(s) "file" not set`},
				{"", "delete node a", 0, "Node a deleted\n", ""},
			} {
				write(t, file, row.file)
				var out, errOut bytes.Buffer
				args := strings.Fields(strings.ReplaceAll(row.call, "FILE", file))
				code := run(t.Context(), append(args, "--config", cfg), t.TempDir(), &out, &errOut)
				gotErr := strings.ReplaceAll(errOut.String(), file, "FILE")
				if code != row.code || !strings.Contains(out.String(), row.out) ||
					!strings.Contains(gotErr, row.err) {
					t.Errorf("%d: weft %s: code %d, want %d\nout: %s\nwant: %s\nerr: %s\nwant: %s",
						n, row.call, code, row.code, out.String(), row.out, gotErr, row.err)
				}
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestForeignFilesStay: what is declared in a file of people's own is neither changed nor removed.
func TestForeignFilesStay(t *testing.T) {
	dir, cfg, file := t.TempDir(), filepath.Join(t.TempDir(),
		"agent.yaml"), filepath.Join(t.TempDir(), "objects.yaml")
	write(t, cfg, fmt.Sprintf("node: a\nstore: {dir: %q}\n", dir))
	theirs := filepath.Join(dir, "mine.yaml")
	write(t, theirs, "# mine\n"+objectNode)
	write(t, file, objectNode)
	for call, want := range map[string]string{
		"apply -f " + file: "write Node a: it is declared at " + theirs + ":2: edit it there",
		"delete node a": "delete Node a: it is declared at " + theirs +
			":2: remove it from there",
	} {
		var out, errOut bytes.Buffer
		if code := run(t.Context(), append(strings.Fields(call), "--config", cfg), t.TempDir(),
			&out, &errOut); code != 1 || !strings.Contains(errOut.String(), want) {
			t.Errorf("weft %s: code %d: %s%s", call, code, out.String(), errOut.String())
		}
	}
	if got, err := os.ReadFile(theirs); err != nil || string(got) != "# mine\n"+objectNode {
		t.Errorf("%s, %v", got, err)
	}
}
