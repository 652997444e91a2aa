package k8s

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// The manifests of packaging/kubernetes, in the order in which they are applied.
const (
	CRDs = "crds.yaml"
	RBAC = "rbac.yaml"
)

// Manifest is what a file of packaging/kubernetes holds.
func Manifest(t testing.TB, name string) []*unstructured.Unstructured {
	t.Helper()
	_, self, _, _ := runtime.Caller(0)
	data, err := os.ReadFile(filepath.Join(filepath.Dir(self), "..", "..", "packaging",
		"kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	return Documents(t, data)
}

// Documents are the objects of a YAML text.
func Documents(t testing.TB, data []byte) (out []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		switch {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			t.Fatal(err)
		case len(o.Object) > 0:
			out = append(out, o)
		}
	}
}

// Install applies both manifests as an administrator does, and waits for the definitions.
func (s *Server) Install() {
	s.t.Helper()
	for _, name := range []string{CRDs, RBAC} {
		for _, o := range Manifest(s.t, name) {
			if err := s.Apply(o); err != nil {
				s.t.Fatalf("apply %s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
		}
	}
	for _, o := range Manifest(s.t, CRDs) {
		s.Established(o.GetName())
	}
}

// Apply is `kubectl apply --server-side`.
func (s *Server) Apply(o *unstructured.Unstructured) error {
	s.t.Helper()
	client, err := s.resourceOf(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = client.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "kubectl"})
	return err
}

// resourceOf is where an object goes, as the server itself says.
func (s *Server) resourceOf(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	gv, err := schema.ParseGroupVersion(o.GetAPIVersion())
	if err != nil {
		return nil, err
	}
	path := "/apis/" + o.GetAPIVersion()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	data, err := s.Get(path)
	if err != nil {
		return nil, err
	}
	var served metav1.APIResourceList
	if err := json.Unmarshal(data, &served); err != nil {
		return nil, err
	}
	for _, r := range served.APIResources {
		if r.Kind == o.GetKind() && !strings.Contains(r.Name, "/") {
			all := s.Dynamic.Resource(gv.WithResource(r.Name))
			if r.Namespaced {
				return all.Namespace(o.GetNamespace()), nil
			}
			return all, nil
		}
	}
	return nil, fmt.Errorf("%s is not served: %s", o.GroupVersionKind(), data)
}

// Established waits until a definition is served.
func (s *Server) Established(name string) {
	s.t.Helper()
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	for range 600 {
		o, err := s.Dynamic.Resource(definitions).Get(context.Background(), name,
			metav1.GetOptions{})
		if err == nil && condition(o, "Established") == "True" &&
			condition(o, "NamesAccepted") == "True" {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.t.Fatalf("definition %s is not Established", name)
}

func condition(o *unstructured.Unstructured, kind string) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, item := range list {
		if one, _ := item.(map[string]any); one["type"] == kind {
			status, _ := one["status"].(string)
			return status
		}
	}
	return ""
}
