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
	cluster, err := k.cluster(ctx, m.resource)
	if err != nil {
		return unproven, err
	}
	p, err := k.check(ctx, m, cluster)
	if err != nil || p != unproven {
		return p, err
	}
	k.mu.Lock()
	begun, known, empty := m.version != "", m.restores != k.restores, len(m.entries) == 0
	k.mu.Unlock()
	switch {
	case !begun:
		return unproven, nil
	case known:
		return back, nil
	case empty: // it can lose nothing, and who can looks for himself
		return unproven, nil
	}
	return k.askOthers(ctx, m, cluster), nil
}

// askOthers finds out whether the API server is found to have gone back by another mirror. One that
// was checked is not asked again until a session ends: a restore ends some. The first to come asks
// for all, as they all come when an API server is there again.
func (k *Kube) askOthers(ctx context.Context, m *mirror, cluster string) proof {
	k.asking.Lock()
	defer k.asking.Unlock()
	for _, other := range k.mirrors {
		k.mu.Lock()
		known, ask := m.restores != k.restores, other != m && other.checked != k.ended
		k.mu.Unlock()
		if known {
			return back
		}
		if !ask {
			continue
		}
		// What cannot be asked of another is no reason not to read this one.
		if found, err := k.check(ctx, other, cluster); err == nil && found == back {
			return back
		}
	}
	return unproven
}

// check finds out whether the API server's history is still the one that a mirror is of, and notes
// that it may be.
func (k *Kube) check(ctx context.Context, m *mirror, cluster string) (proof, error) {
	k.mu.Lock()
	ended := k.ended // a session that ends meanwhile may have been ended by a restore
	k.mu.Unlock()
	p, err := k.compare(ctx, m, cluster)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil && p != back {
		m.checked = ended
	}
	return p, err
}

// compare says whether it is the same cluster, and has the mirror's anchor as it was at the
// mirror's version, and not what was deleted after it.
func (k *Kube) compare(ctx context.Context, m *mirror, cluster string) (proof, error) {
	if k.isOther(m, cluster) {
		return back, nil
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

// cluster is the UID of the namespace kube-system, which tells clusters apart; "" for one that has
// none yet: a server that starts for the first time makes it soon.
func (k *Kube) cluster(ctx context.Context, r *resource) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	system, err := k.client.Resource(core("namespaces")).Get(ctx, metav1.NamespaceSystem,
		metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", k.explain(r, "get", err)
	}
	return string(system.GetUID()), nil
}

// isOther says whether a cluster, "" for one that is not known, is another than the mirror's.
func (k *Kube) isOther(m *mirror, cluster string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m.cluster == "" {
		m.cluster = cluster
	}
	return cluster != "" && m.cluster != cluster
}
