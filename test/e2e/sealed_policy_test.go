package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/test/labtest"
)

const labelPolicy = `apiVersion: weft.dev/v1alpha1
kind: EncryptionPolicy
metadata: {name: labelled-is-plain}
spec:
  selector: {matchLabels: {open: "yes"}}
`

// TestEncryptionPolicy lets pods travel in cleartext by policy and by annotation: what is named is
// plain, and nothing else.
func TestEncryptionPolicy(t *testing.T) {
	l := useSealed(t)
	web, db, server := l.Pod("web"), l.Pod("db"), l.Pod("server")
	for _, mode := range []string{"auto", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			if mode != "auto" {
				reconfigure(t, map[string]any{"mode": mode}, agents(l)...)
			}
			t.Run("namespace", func(t *testing.T) {
				putObject(t, l, "policy.yaml", labtest.OpenPolicy)
				plainExactly(t, l, web)
			})
			t.Run("label", func(t *testing.T) {
				putObject(t, l, "policy.yaml", labelPolicy)
				plainExactly(t, l, db)
			})
			t.Run("annotation", func(t *testing.T) {
				putObject(t, l, "policy.yaml", labtest.OpenPolicy)
				annotate(t, l, map[string]string{"shop/server": "false", "open/web": "true"})
				plainExactly(t, l, server)
			})
			t.Run("withdrawn", func(t *testing.T) { plainExactly(t, l) })
		})
	}
}

// plainExactly waits until the agents let just these pods be plain, and holds the wire to it.
func plainExactly(t *testing.T, l *lab.Lab, open ...*lab.Pod) {
	t.Helper()
	var allowed []netip.Prefix
	isOpen := map[string]bool{}
	for _, p := range open {
		allowed = append(allowed, netip.PrefixFrom(p.IPv4, 32), netip.PrefixFrom(p.IPv6, 128))
		isOpen[p.Name] = true
	}
	for _, n := range agents(l) {
		eventually(t, "policy at node "+n.Name, func() error {
			e, err := encryption(t.Context(), n)
			if err != nil {
				return err
			}
			same := len(e.Plain) == len(allowed)
			for _, p := range allowed {
				same = same && slices.Contains(e.Plain, p)
			}
			if !same {
				return fmt.Errorf("plain are %v, not %v", e.Plain, allowed)
			}
			return nil
		})
	}
	rules := podRules(l)
	rules.Allowed = allowed
	for _, pair := range crossPairs(l) {
		plain := isOpen[pair.from.Name] || isOpen[pair.to.Name]
		// The agents' word comes a moment before the datapath's deed.
		eventually(t, fmt.Sprintf("%s and %s plain: %t", pair.from.Name, pair.to.Name, plain),
			func() error {
				watch := watchWire(t, l, rules, nil)
				if err := reach(t.Context(), pair.from, pair.to); err != nil {
					return fmt.Errorf("%w; drops at a: %s; at b: %s", err, dropText(t, l.Node("a")),
						dropText(t, l.Node("b")))
				}
				if r := watch.stop(t); !r.Clean() || plain != (r.Allowed > 0) ||
					plain == podsSealed(r) {
					return fmt.Errorf("on the wire: %+v", r)
				}
				return nil
			})
	}
}

// podsSealed says whether enough sealed packets passed for two pods to have talked: agents also
// probe paths, which takes a few.
func podsSealed(r encryptcheck.Report) bool { return r.Sealed > 20 }

// putObject writes a file of objects for the length of a test.
func putObject(t *testing.T, l *lab.Lab, name, text string) {
	t.Helper()
	path := filepath.Join(l.ObjectsDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
}

// annotate sets pods' annotation for the length of a test.
func annotate(t *testing.T, l *lab.Lab, values map[string]string) {
	t.Helper()
	path := filepath.Join(l.ObjectsDir(), "pods.yaml")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	encoder, decoder := yaml.NewEncoder(&out), yaml.NewDecoder(bytes.NewReader(before))
	for {
		var pod v1alpha1.Pod
		if err := decoder.Decode(&pod); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if value, ok := values[pod.Metadata.Key()]; ok {
			pod.Metadata.Annotations = map[string]string{v1alpha1.EncryptAnnotation: value}
		}
		if err := encoder.Encode(pod); err != nil {
			t.Fatal(err)
		}
	}
	if err := encoder.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, before, 0o644); err != nil {
			t.Error(err)
		}
	})
}
