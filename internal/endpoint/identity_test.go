package endpoint

import (
	"context"
	"errors"
	"testing"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/endpoint/endpointtest"
)

func declaredPod(account, encrypt string) *v1alpha1.Pod {
	pod := &v1alpha1.Pod{Spec: v1alpha1.PodSpec{ServiceAccount: account}}
	if encrypt != "" {
		pod.Metadata.Annotations = map[string]string{v1alpha1.EncryptAnnotation: encrypt}
	}
	return pod
}

func TestIdentity(t *testing.T) {
	b := newHarness(t)
	numbers, broken := map[string]uint32{"shop/web": 300,
		"shop/db": 301}, errors.New("store is away")
	fails := true
	b.opt.Identity = func(namespace, account string, _ map[string]string) (uint32, error) {
		if fails {
			return 0, broken
		}
		return numbers[namespace+"/"+account], nil
	}
	b.restart()
	b.pods["shop/a"] = declaredPod("web", "false")
	path, _ := endpointtest.NewPod(t)
	b.add("a", path)
	expect := func(what string, number uint32, encrypt string) {
		t.Helper()
		attached, objects := b.dp.Attached(), b.dir.Objects()
		if len(attached) != 1 || len(objects) != 1 {
			t.Fatalf("%s: attached %+v, published %+v", what, attached, objects)
		}
		for _, ep := range attached {
			if ep.Identity != number {
				t.Errorf("%s: attached %+v", what, ep)
			}
		}
		for _, o := range objects {
			if o.Status.Identity != number ||
				o.Metadata.Annotations[v1alpha1.EncryptAnnotation] != encrypt {
				t.Errorf("%s: published %+v %+v", what, o.Metadata, o.Status)
			}
		}
	}
	expect("added without a store", 0, "false")
	if err := b.Sync(context.Background()); !errors.Is(err, broken) {
		t.Errorf("sync: %v", err)
	}
	fails = false
	if err := b.Sync(context.Background()); err != nil {
		t.Error(err)
	}
	expect("the store is back", 300, "false")
	fails = true
	b.restart()
	expect("restored without a store", 300, "false")
	b.pods["shop/a"] = declaredPod("db", "")
	if err := b.Sync(context.Background()); !errors.Is(err, broken) {
		t.Errorf("sync: %v", err)
	}
	expect("another account without a store", 0, "")
	fails = false
	if err := b.Sync(context.Background()); err != nil {
		t.Error(err)
	}
	expect("another account", 301, "")
	for _, change := range []struct {
		name string
		pod  *v1alpha1.Pod
		want string
	}{
		{"asks for plain", declaredPod("db", "false"), "false"},
		{"gone", declaredPod("db", ""), ""},
		{"asks to be sealed", declaredPod("db", "true"), "true"},
	} {
		b.pods["shop/a"] = change.pod
		if err := b.Sync(context.Background()); err != nil {
			t.Error(err)
		}
		expect(change.name, 301, change.want)
	}
	numbers["shop/default"] = 302
	delete(b.pods, "shop/a")
	if err := b.Sync(context.Background()); err != nil {
		t.Error(err)
	}
	// Which may be a mistake: it stays who it was.
	expect("the declaration is gone", 301, "true")
}

// recordedPolicies notes for whom sets are asked, and what is told of attaching.
type recordedPolicies struct {
	labels  []map[string]string
	ended   []error
	refusal error
}

func (r *recordedPolicies) Of(info Info) (egress, ingress uint32, err error) {
	r.labels = append(r.labels, info.Labels)
	return 7, 8, r.refusal
}

func (r *recordedPolicies) Attached(_ Info, err error) error {
	r.ended = append(r.ended, err)
	return err
}

// TestPodCannotBeRead: a pod of whom nobody knows who it is is not added, and one that is there
// stays who it was.
func TestPodCannotBeRead(t *testing.T) {
	b := newHarness(t)
	b.pods["shop/a"] = declaredPod("web", "")
	b.pods["shop/a"].Metadata.Labels = map[string]string{"app": "web"}
	path, _ := endpointtest.NewPod(t)
	b.podErr = errors.New("the API is away")
	if _, err := b.Add(context.Background(), b.request("a", path)); !errors.Is(err, ErrUnavailable) ||
		!errors.Is(err, b.podErr) {
		t.Fatalf("added: %v", err)
	}
	if objects := b.dir.Objects(); len(objects)+len(b.dp.Attached()) != 0 {
		t.Errorf("left behind: %v", objects)
	}
	b.podErr = nil
	b.add("a", path)
	b.podErr = errors.New("the API is away")
	if err := b.Sync(context.Background()); !errors.Is(err, b.podErr) {
		t.Errorf("sync: %v", err)
	}
	if got := b.dir.Objects()["shop/a"]; got.Spec.ServiceAccount != "web" ||
		got.Metadata.Labels["app"] != "web" {
		t.Errorf("is somebody else: %+v", got)
	}
}

// TestPolicies: an endpoint is attached with its policy sets or not at all, and keeps the labels by
// which policies select it when its declaration is gone, which may be a mistake. Labels of a
// request do not end up in a map that others read.
func TestPolicies(t *testing.T) {
	b := newHarness(t)
	policies := &recordedPolicies{refusal: errors.New("no room")}
	b.opt.Policies = policies
	b.restart()
	b.pods["shop/a"] = declaredPod("web", "")
	b.pods["shop/a"].Metadata.Labels = map[string]string{"app": "web"}
	path, _ := endpointtest.NewPod(t)
	if _, err := b.Add(context.Background(), b.request("a", path)); !errors.Is(err,
		policies.refusal) || len(b.dp.Attached()) > 0 || len(policies.ended) > 0 {
		t.Fatalf("without its sets: %v, attached %+v", err, b.dp.Attached())
	}
	policies.refusal = nil
	b.add("a", path)
	for _, ep := range b.dp.Attached() {
		if ep.EgressSet != 7 || ep.IngressSet != 8 || len(policies.ended) != 1 ||
			policies.ended[0] != nil {
			t.Errorf("attached %+v, told %v", ep, policies.ended)
		}
	}
	delete(b.pods, "shop/a")
	if err := b.Sync(context.Background()); err != nil {
		t.Error(err)
	}
	for _, info := range b.List() {
		if info.Labels["app"] != "web" {
			t.Errorf("labels after its declaration is gone: %v", info.Labels)
		}
	}
}
