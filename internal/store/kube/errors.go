package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type objectList = unstructured.UnstructuredList

// The manifests that an administrator applies.
const (
	crdFile  = "packaging/kubernetes/crds.yaml"
	rbacFile = "packaging/kubernetes/rbac.yaml"
)

// errNotServed is of a resource that the API server does not know.
var errNotServed = errors.New("not served")

func notServed(err error) bool { return errors.Is(err, errNotServed) }

// explain adds what to do to an error of the API server's.
func (k *Kube) explain(r *resource, verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the API server does not let this agent %s %s: apply %s (%w)", verb,
			r.name(), rbacFile, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not know who this agent is: correct the credentials in store.kubernetes.kubeconfig, or the pod's service account (%w)", err)
	case apierrors.IsNotFound(err) && verb == "list":
		fix := ""
		if r.Group == endpoints.Group {
			fix = ": apply " + crdFile
		}
		return fmt.Errorf("the API server has no resource %s in version %s%s (%w: %w)", r.name(),
			r.Version, fix, errNotServed, err)
	}
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) ||
		errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer from the API server at %s: %w", k.host, err)
	}
	return err
}
