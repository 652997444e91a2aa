package endpoint

import (
	"context"
	"errors"
	"slices"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/endpoint/endpointtest"
)

func TestGC(t *testing.T) {
	b := newHarness(t)
	for _, c := range containers(4) {
		ns, _ := endpointtest.NewPod(t)
		req := b.request(c, ns)
		if c == "c3" {
			req.Network = "other"
		}
		if _, err := b.Add(context.Background(), req); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (out []string) {
		for _, i := range b.List() {
			out = append(out, i.ContainerID)
		}
		return out
	}
	if err := b.GCNetwork(context.Background(), "weft",
		[]Attachment{{"c1", "eth0"}, {"c2", "eth1"}}); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"c1", "c3"}) {
		t.Fatalf("left %v", got)
	}
	if err := b.GC(context.Background(), []Attachment{{"c1", "eth0"}}); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"c1"}) {
		t.Fatalf("left %v", got)
	}
}

func TestDirectoryFailureDoesNotFailAdd(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	b.dir.Break(errors.New("disk full"))
	b.add("c1", ns)
	b.dir.Break(nil)
	if err := b.Sync(context.Background()); err != nil || len(b.dir.Objects()) != 1 {
		t.Fatalf("after Sync: %v, %v", err, b.dir.Objects())
	}
	b.dir.Break(errors.New("disk full"))
	b.del("c1")
	if len(b.List()) != 0 {
		t.Errorf("still listed: %v", b.List())
	}
	b.dir.Break(nil)
	b.restart()
	b.nothingLeft()
}

func TestSyncFollowsDeclarations(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	b.add("web", ns)
	b.pods["shop/web"] = &v1alpha1.Pod{Metadata: v1alpha1.ObjectMeta{Labels: map[string]string{"v": "2"}}, Spec: v1alpha1.PodSpec{ServiceAccount: "x", Ports: []v1alpha1.NamedPort{{Name: "http", Port: 80, Protocol: "TCP"}}}}
	if err := b.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := b.dir.Objects()["shop/web"]; got.Metadata.Labels["v"] != "2" ||
		got.Spec.ServiceAccount != "x" || len(got.Spec.Ports) != 1 ||
		got.Spec.Ports[0].Name != "http" {
		t.Errorf("published %+v", got)
	}
	b.restart()
	if got, _ := b.Get("web"); got.Labels["v"] != "2" {
		t.Errorf("after restart %+v", got)
	}
}

func TestDelOfUnknownRemovesOnlyOurs(t *testing.T) {
	b := newHarness(t)
	ns, _ := endpointtest.NewPod(t)
	b.del("nobody")
	b.add("c1", ns)
	b.del("nobody")
	if err := b.check("c1"); err != nil {
		t.Error(err)
	}
	if err := b.Check(context.Background(),
		CheckRequest{Attachment: Attachment{"nobody", "eth0"}}); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}
