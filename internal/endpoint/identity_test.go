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
	numbers, broken := map[string]uint32{"shop/web": 300, "shop/db": 301}, errors.New("store is away")
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
			if o.Status.Identity != number || o.Metadata.Annotations[v1alpha1.EncryptAnnotation] != encrypt {
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
		{"asks for plain", declaredPod("db", "false"), "false"}, {"gone", declaredPod("db", ""), ""},
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
	expect("the declaration is gone", 302, "true")
}
