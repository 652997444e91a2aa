package v1alpha1

import (
	"strings"
	"testing"
)

func TestIdentity(t *testing.T) {
	const good = "spiffe://weft.local/ns/shop/sa/web"
	for _, tt := range []struct{ name, spiffeID, want string }{
		{"256", good, ""}, {"4194303", good, ""},
		{"255", good, "metadata.name"}, {"4194304", good, "metadata.name"},
		{"0300", good, "metadata.name"}, {"web", good, "metadata.name"},
		{"300", "", "spec.spiffeID: is missing"},
		{"300", "weft.local/ns/shop/sa/web", "spec.spiffeID"},
		{"300", "spiffe:///ns/shop/sa/web", "spec.spiffeID"},
		{"300", "spiffe://td/node/a", "spec.spiffeID"}, {"300", good + "/x", "spec.spiffeID"},
		{"300", "spiffe://td/ns/A/sa/web", "spec.spiffeID"},
	} {
		i := &Identity{Metadata: ObjectMeta{Name: tt.name},
			Spec: IdentitySpec{SPIFFEID: tt.spiffeID}}
		i.SetDefaults()
		errs := i.Validate()
		if (len(errs) == 0) != (tt.want == "") || len(errs) > 0 &&
			!strings.HasPrefix(errs[0].Error(), tt.want) {
			t.Errorf("%s %s: %v", tt.name, tt.spiffeID, errs)
		}
		if valid := tt.want == "" ||
			!strings.HasPrefix(tt.want, "metadata"); valid != (i.Number() != 0) {
			t.Errorf("%s is number %d", tt.name, i.Number())
		}
	}
	i := &Identity{Metadata: ObjectMeta{Name: "300", Namespace: "x"},
		Spec: IdentitySpec{SPIFFEID: good}}
	i.SetDefaults()
	if errs := i.Validate(); len(errs) != 1 || errs[0].Field != "metadata.namespace" {
		t.Errorf("with a namespace: %v", errs)
	}
}

func TestEndpointIdentity(t *testing.T) {
	for n, good := range map[uint32]bool{0: true, 1: false, 255: false, 256: true,
		MaxIdentity: true, MaxIdentity + 1: false} {
		if got := checkIdentity(n) == ""; got != good {
			t.Errorf("%d: %v", n, got)
		}
	}
}
