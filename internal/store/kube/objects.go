package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// maxName is the length of the longest name of an object, in bytes.
const maxName = 253

// apiName is what an object is called in the API.
func apiName(o v1alpha1.Object) (string, error) {
	name := o.Meta().Name
	if ep, ok := o.(*v1alpha1.Endpoint); ok {
		name += "." + ep.Spec.NodeName
	}
	if len(name) > maxName {
		return "", fmt.Errorf("%s is longer than %d bytes, which objects' names have at most: shorten the pod's name or the node's",
			name, maxName)
	}
	return name, nil
}

// toAPI is an object as the API has it, with the resource that it is of.
func toAPI(o v1alpha1.Object) (*resource, *object, error) {
	o.SetDefaults()
	var problems []error
	for _, p := range o.Validate() {
		problems = append(problems, p)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, nil, err
	}
	r := resourceOf(o.Type().Kind, o.Meta().Namespace)
	if r == nil {
		return nil, nil, fmt.Errorf("a %s is Kubernetes' own: use kubectl", o.Type().Kind)
	}
	data, err := json.Marshal(o)
	if err != nil {
		return nil, nil, err
	}
	out := &object{}
	if err := json.Unmarshal(data, &out.Object); err != nil {
		return nil, nil, err
	}
	name, err := apiName(o)
	if err != nil {
		return nil, nil, err
	}
	out.SetName(name)
	out.SetKind(r.apiKind)
	return r, out, nil
}

// create makes an object that is not there.
func (k *Kube) create(ctx context.Context, r *resource, o *object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := k.client.Resource(r.GroupVersionResource).Namespace(o.GetNamespace()).
		Create(ctx, o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return store.ErrExists
	}
	return k.explain(r, "create", err)
}

// get is an object as it is now, nil for none.
func (k *Kube) get(ctx context.Context, r *resource, namespace, name string) (*object, error) {
	o, err := k.client.Resource(r.GroupVersionResource).Namespace(namespace).
		Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return o, k.explain(r, "get", err)
}

// update puts an object in place of one that was read; store.ErrChanged if that is another by now.
func (k *Kube) update(ctx context.Context, r *resource, o, read *object) error {
	o.SetResourceVersion(read.GetResourceVersion())
	o.SetUID(read.GetUID())
	_, err := k.client.Resource(r.GroupVersionResource).Namespace(o.GetNamespace()).
		Update(ctx, o, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return store.ErrChanged
	}
	return k.explain(r, "update", err)
}

// write puts an object, whether it is there or not.
func (k *Kube) write(o v1alpha1.Object) error {
	r, out, err := toAPI(o)
	if err != nil {
		return err
	}
	ctx, cancel, err := k.call(r)
	if err != nil {
		return err
	}
	defer cancel()
	for {
		there, err := k.get(ctx, r, out.GetNamespace(), out.GetName())
		switch {
		case err != nil:
			return err
		case there == nil:
			err = k.create(ctx, r, out.DeepCopy())
		case same(there, out):
			return nil
		default:
			err = k.update(ctx, r, out.DeepCopy(), there)
		}
		// Between the two calls somebody else may have written.
		if !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrChanged) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// same says whether two objects say the same.
func same(a, b *object) bool {
	one, errOne := json.Marshal(bare(a))
	other, errOther := json.Marshal(bare(b))
	return errOne == nil && errOther == nil && string(one) == string(other)
}

// PutEndpoint implements store.Store: when it returns, the API server has the endpoint.
func (k *Kube) PutEndpoint(ep *v1alpha1.Endpoint) error {
	own := *ep
	if err := k.write(&own); err != nil {
		return fmt.Errorf("publish endpoint %q: %w", own.Metadata.Key(), err)
	}
	return nil
}

// DeleteEndpoint implements store.Store. It is about this node's endpoints alone. One that an older
// state of the API has lost is made and deleted: whoever keeps it in use learns by that that it is
// to go.
func (k *Kube) DeleteEndpoint(key string) error {
	namespace, name, _ := strings.Cut(key, "/")
	name += "." + k.opt.Node
	ctx, cancel, err := k.call(endpoints)
	if err == nil {
		defer cancel()
		k.mu.Lock()
		known := k.mirrorOf(endpoints).entries[endpoints.file(namespace, name)]
		var lost *object
		if known != nil && known.lost {
			lost = known.own
		}
		k.mu.Unlock()
		if lost != nil {
			err = k.create(ctx, endpoints, lost.DeepCopy())
		}
	}
	if err == nil || errors.Is(err, store.ErrExists) {
		err = k.remote(ctx, endpoints, namespace, name)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("withdraw endpoint %q: %w", key, err)
	}
	return nil
}

// remote deletes an object; store.ErrNotFound if there is none.
func (k *Kube) remote(ctx context.Context, r *resource, namespace, name string) error {
	err := k.client.Resource(r.GroupVersionResource).Namespace(namespace).
		Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return store.ErrNotFound
	}
	return k.explain(r, "delete", err)
}

func (k *Kube) mirrorOf(r *resource) *mirror {
	for _, m := range k.mirrors {
		if m.resource == r {
			return m
		}
	}
	return nil
}

// PutObject implements store.Editor, for Weft's own kinds.
func (k *Kube) PutObject(o v1alpha1.Object) error {
	if err := k.write(o); err != nil {
		return fmt.Errorf("write %s %s: %w", o.Type().Kind, o.Meta().Key(), err)
	}
	return nil
}

// DeleteObject implements store.Editor, for Weft's own kinds. An endpoint goes from every node that
// has published it.
func (k *Kube) DeleteObject(kind, key string) error {
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		namespace, name = "", key
	}
	r := resourceOf(kind, namespace)
	if r == nil {
		return fmt.Errorf("delete %s %s: it is Kubernetes' own: use kubectl", kind, key)
	}
	ctx, cancel, err := k.call(r)
	if err != nil {
		return err
	}
	defer cancel()
	names := []string{name}
	if r == endpoints {
		if names, err = k.publishers(ctx, namespace, name); err != nil {
			return err
		}
	}
	err = store.ErrNotFound
	for _, name := range names {
		if err = k.remote(ctx, r, namespace, name); err != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", kind, key, err)
	}
	return nil
}

// publishers are the names of the objects that hold an endpoint.
func (k *Kube) publishers(ctx context.Context, namespace, name string) (names []string, err error) {
	l, err := k.list(ctx, endpoints)
	if err != nil {
		return nil, fmt.Errorf("look for endpoint %s/%s: %w", namespace, name, err)
	}
	for _, o := range l.objects {
		node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
		if o.GetNamespace() == namespace && o.GetName() == name+"."+node {
			names = append(names, o.GetName())
		}
	}
	return names, nil
}

// Pod asks the API server for one pod, which may have been made a moment ago. One that is not there
// is an error: kubelets run none that never was.
func (k *Kube) Pod(key string) (*v1alpha1.Pod, error) {
	namespace, name, _ := strings.Cut(key, "/")
	ctx, cancel, err := k.call(pods)
	if err != nil {
		return nil, err
	}
	defer cancel()
	o, err := k.get(ctx, pods, namespace, name)
	if err != nil {
		return nil, err
	}
	if o == nil {
		return nil, fmt.Errorf("pod %s is not in Kubernetes' API", key)
	}
	s, _ := pods.read(o)
	if len(s.Objects) == 1 {
		return s.Objects[0].Object.(*v1alpha1.Pod), nil
	}
	for _, problem := range s.Errors {
		return nil, problem
	}
	return nil, nil
}
