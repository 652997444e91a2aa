package dir

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"weft.dev/weft/internal/store"
)

// BenchmarkChangedEndpoint is one endpoint that changes among 1 000 nodes and 10 000 endpoints,
// until a watcher is told.
func BenchmarkChangedEndpoint(b *testing.B) {
	path := b.TempDir()
	d, err := Open(path)
	if err != nil {
		b.Fatal(err)
	}
	for i := range 1000 {
		text := fmt.Sprintf("apiVersion: weft.dev/v1alpha1\nkind: Node\nmetadata: {name: n%d}\nspec: {addresses: [172.16.%d.%d], podCIDRs: [10.%d.%d.0/24]}\n",
			i, i/200, 1+i%200, i/200, i%200)
		if err := os.WriteFile(fmt.Sprintf("%s/n%d.yaml", path, i), []byte(text),
			0o644); err != nil {
			b.Fatal(err)
		}
	}
	put := func(i, version int) {
		ep := endpoint("shop", fmt.Sprint("e", i), fmt.Sprint("n", i%1000))
		ep.Metadata.Labels = map[string]string{"version": fmt.Sprint(version)}
		ep.Spec.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i % 1000 / 200),
			byte(i % 200), byte(2 + i/1000)})}
		data, err := store.Encode(ep)
		if err == nil {
			if _, err = d.ensureDir(endpointsDir, publicDir); err == nil {
				err = os.WriteFile(fmt.Sprintf("%s/endpoints/shop--e%d.yaml", path, i), data, 0o644)
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for i := range 10000 {
		put(i, 0)
	}
	time.Sleep(settled + time.Second) // so that the files' times tell a later change
	told := 0
	w := &watch{dir: d, changed: func(delta store.Delta) { told += len(delta.Changes) },
		paths: map[string]bool{}}
	if err := w.open(); err != nil {
		b.Fatal(err)
	}
	defer w.close()
	if err := w.refresh(); err != nil || told != 11000 {
		b.Fatalf("told of %d objects: %v", told, err)
	}
	told = 0
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n++
		put(n%10000, n)
		w.note(fsnotify.Event{Name: fmt.Sprintf("%s/endpoints/shop--e%d.yaml", path, n%10000),
			Op: fsnotify.Create}, fromEndpoints)
		if err := w.refresh(); err != nil {
			b.Fatal(err)
		}
	}
	if told != n {
		b.Errorf("told of %d changes of %d", told, n)
	}
}
