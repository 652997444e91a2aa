package kube

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// judge is check, with what other mirrors know. A restore that this one cannot tell from a gap, as
// what was written last is gone, or the API server has forgotten the time, shows in another.
func (k *Kube) judge(ctx context.Context, m *mirror) (proof, error) {
	p, err := k.check(ctx, m)
	k.mu.Lock()
	begun, known := m.version != "", m.restores != k.restores
	k.mu.Unlock()
	if err != nil || p != unproven || !begun {
		return p, err
	}
	for _, other := range k.mirrors {
		if known {
			return back, nil
		}
		if other != m {
			// What cannot be asked of another is no reason not to read this one.
			found, err := k.check(ctx, other)
			known = err == nil && found == back
		}
	}
	if known {
		return back, nil
	}
	return unproven, nil
}

// check finds out whether the API server's history is still the one that a mirror is of: it is the
// same cluster, and has the mirror's anchor as it was at the mirror's version, and not what was
// deleted after it.
func (k *Kube) check(ctx context.Context, m *mirror) (proof, error) {
	other, err := k.otherCluster(ctx, m)
	if err != nil || other {
		return back, err
	}
	k.mu.Lock()
	version, anchor, gone := m.version, m.entries[m.anchor], m.gone
	k.mu.Unlock()
	if version == "" {
		return unproven, nil
	}
	p := unproven
	if gone != nil && (anchor == nil || newer(gone.version, anchor.version)) {
		was, known, err := k.at(ctx, m.resource, gone, version)
		switch {
		case err != nil || !known:
			return unproven, err
		case len(was) == 1 && was[0].uid == gone.uid:
			return back, nil
		}
	}
	if anchor != nil {
		was, known, err := k.at(ctx, m.resource, anchor, version)
		switch {
		case err != nil || !known:
			return unproven, err
		case len(was) != 1 || was[0].uid != anchor.uid || was[0].version != anchor.version:
			return back, nil
		}
		p = proven
	}
	return p, nil
}

// found is an object as far as its history goes.
type found struct {
	uid     types.UID
	version string
}

// at is an object as it was at a version, none if there was none. known is false for a version that
// is forgotten, or not reached: the versions in a listing will tell.
func (k *Kube) at(ctx context.Context, r *resource, x *entry, version string) (out []found,
	known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := k.client.Resource(r.GroupVersionResource).Namespace(x.namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + x.name, ResourceVersion: version,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	switch {
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || isFuture(err):
		return nil, false, nil
	case err != nil:
		return nil, false, k.explain(r, "list", err)
	}
	for _, o := range list.Items {
		out = append(out, found{o.GetUID(), o.GetResourceVersion()})
	}
	return out, true, nil
}

// isFuture says whether the API server refused a version that it has not reached: etcd's
// ErrFutureRev, which it hands on as text, or its own "Too large resource version".
func isFuture(err error) bool {
	return err != nil && (apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) ||
		strings.Contains(err.Error(), "future revision"))
}

// otherCluster says whether the API server is that of another cluster than the mirror's, which the
// UID of the namespace kube-system tells.
func (k *Kube) otherCluster(ctx context.Context, m *mirror) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	system, err := k.client.Resource(core("namespaces")).Get(ctx, metav1.NamespaceSystem,
		metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil // a server that starts for the first time makes it soon
	case err != nil:
		return false, k.explain(m.resource, "get", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	uid := string(system.GetUID())
	if m.cluster == "" {
		m.cluster = uid
	}
	return m.cluster != uid, nil
}
