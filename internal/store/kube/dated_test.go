package kube

import (
	"testing"

	"weft.dev/weft/internal/policy"
)

// TestDated: of several PeerAuthentications the oldest counts, so when one was made is read.
func TestDated(t *testing.T) {
	for _, r := range resources {
		if r.kind != policy.KindPeerAuthentication {
			continue
		}
		read := func(created string) *policy.Policy {
			source, _ := r.read(&object{Object: thing{"metadata": thing{"name": "a",
				"namespace": "shop", "creationTimestamp": created},
				"spec": thing{"mtls": thing{"mode": "STRICT"}}}})
			if len(source.Objects) != 1 || len(source.Errors) > 0 {
				t.Fatalf("%v, %v", source.Objects, source.Errors)
			}
			return source.Objects[0].Object.(*policy.Policy)
		}
		if read("2026-01-01T00:00:00Z").Same(read("2026-01-02T00:00:00Z")) {
			t.Error("two that were made at different times are the same")
		}
		return
	}
	t.Error("PeerAuthentications are not read")
}
