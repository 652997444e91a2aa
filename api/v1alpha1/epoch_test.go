package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func goodEpoch() *Epoch {
	created := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	return &Epoch{
		TypeMeta: TypeMeta{APIVersion, KindEpoch}, Metadata: ObjectMeta{Name: "epoch-7"},
		Spec: EpochSpec{Number: 7, Created: Time{created}, Expires: Time{created.Add(time.Hour)},
			KEK: "file:///etc/weft/kek", KEKVersion: "1", Wrapped: Base64{1, 2, 3}},
	}
}

func TestEpochValidation(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*Epoch)
		want  string
	}{
		{"good", func(*Epoch) {}, ""},
		{"no version", func(e *Epoch) { e.Spec.KEKVersion = "" }, ""},
		{"namespace", func(e *Epoch) { e.Metadata.Namespace = "a" },
			"metadata.namespace: an Epoch has no namespace"},
		{"name", func(e *Epoch) { e.Metadata.Name = "epoch-8" },
			`metadata.name: "epoch-8" is not the name of epoch number 7: want epoch-7`},
		{"number", func(e *Epoch) { e.Spec.Number, e.Metadata.Name = 0, "epoch-0" },
			"spec.number: is missing"},
		{"created", func(e *Epoch) { e.Spec.Created = Time{} },
			"spec.created: is missing: want a time"},
		{"expires", func(e *Epoch) { e.Spec.Expires = Time{} }, "spec.expires: is missing"},
		{"order", func(e *Epoch) { e.Spec.Expires = e.Spec.Created },
			"spec.expires: 2026-01-02T03:04:05.006Z is not after"},
		{"kek", func(e *Epoch) { e.Spec.KEK = "/etc/weft/kek" },
			`spec.kek: "/etc/weft/kek" is not the URL of a key`},
		{"version", func(e *Epoch) { e.Spec.KEKVersion = "a\nb" }, "spec.kekVersion:"},
		{"no key", func(e *Epoch) { e.Spec.Wrapped = nil }, "spec.wrapped: is missing"},
		{"large key", func(e *Epoch) { e.Spec.Wrapped = make(Base64, maxWrapped+1) },
			"spec.wrapped: is 16385 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := goodEpoch()
			tt.spoil(e)
			errs := e.Validate()
			if tt.want == "" && len(errs) > 0 {
				t.Errorf("got %v", errs)
			}
			if tt.want != "" && (len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), tt.want)) {
				t.Errorf("got %v, want %s", errs, tt.want)
			}
		})
	}
}

func TestEpochFormats(t *testing.T) {
	e := goodEpoch()
	data, err := yaml.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: epoch-7", "number: 7",
		`created: "2026-01-02T03:04:05.006Z"`, "wrapped: AQID"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %s in\n%s", want, data)
		}
	}
	var back Epoch
	if data, err = json.Marshal(e); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &back); err != nil ||
		!back.Spec.Created.Equal(e.Spec.Created.Time) ||
		string(back.Spec.Wrapped) != string(e.Spec.Wrapped) {
		t.Errorf("JSON %s became %+v, %v", data, back, err)
	}
}
