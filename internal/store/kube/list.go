package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/store"
)

// A listing that lacks an object says that it was deleted only as far as it is of the same history
// as the mirror.
type proof int

const (
	// unproven: nothing is known but the versions in the listing.
	unproven proof = iota
	// proven: the API server still has the mirror's version as it was.
	proven
	// back: it has another.
	back
)

// listing is every object of a resource at one resource version.
type listing struct {
	version string
	objects map[string]*object // by file
}

// bring brings a mirror to what the API server has. It lists if it has to, or always.
func (k *Kube) bring(ctx context.Context, m *mirror, always bool) error {
	m.asking.Lock()
	defer m.asking.Unlock()
	p, err := k.judge(ctx, m)
	if err != nil {
		return err
	}
	k.mu.Lock()
	list := always || p != proven || m.restores != k.restores || m.hasLost()
	k.mu.Unlock()
	if !list {
		return nil
	}
	return k.relist(ctx, m, p)
}

// relist lists a resource and takes over what is different from its mirror.
func (k *Kube) relist(ctx context.Context, m *mirror, p proof) error {
	for attempt := 0; ; attempt++ {
		l, err := k.list(ctx, m.resource)
		if err != nil {
			return err
		}
		if k.isOlder(m, l) {
			p = back
		}
		if attempt == 0 {
			wrote, err := k.writeAgain(ctx, m, l, p)
			if err != nil {
				return err
			}
			if wrote {
				continue
			}
		}
		k.adopt(m, l, p)
		return nil
	}
}

// list reads a resource page by page, all of one resource version.
func (k *Kube) list(ctx context.Context, r *resource) (*listing, error) {
	l := &listing{objects: map[string]*object{}}
	for next, fresh := "", true; fresh || next != ""; fresh = false {
		page, err := k.page(ctx, r, next)
		if apierrors.IsResourceExpired(err) && next != "" {
			return k.list(ctx, r)
		}
		if err != nil {
			return nil, err
		}
		for n := range page.Items {
			o := &page.Items[n]
			l.objects[r.file(o.GetNamespace(), o.GetName())] = o
		}
		l.version, next = page.GetResourceVersion(), page.GetContinue()
	}
	return l, nil
}

func (k *Kube) page(ctx context.Context, r *resource, next string) (*objectList, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	page, err := k.client.Resource(r.GroupVersionResource).List(ctx,
		metav1.ListOptions{Limit: pageSize, Continue: next})
	return page, k.explain(r, "list", err)
}

// isOlder says whether a listing is of an older state than the mirror: versions only grow.
func (k *Kube) isOlder(m *mirror, l *listing) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m.version == "" {
		return false
	}
	if newer(m.version, l.version) {
		return true
	}
	for file, x := range m.entries {
		if o := l.objects[file]; o != nil && newer(x.version, o.GetResourceVersion()) {
			return true
		}
	}
	return false
}

// writeAgain writes what this node knows, the API server has not, and nobody has written meanwhile.
// What the API server does not take stays as it is here, and keeps nothing else from being read:
// its namespace may be lost too, and is looked for again once that is back (Kube.put).
func (k *Kube) writeAgain(ctx context.Context, m *mirror, l *listing, p proof) (wrote bool,
	err error) {
	k.mu.Lock()
	owned := map[string]*object{}
	for file, x := range m.entries {
		if x.own != nil && l.objects[file] == nil && (p == back || x.lost) {
			owned[file] = x.own
		}
	}
	k.mu.Unlock()
	for file, o := range owned {
		err := k.create(ctx, m.resource, o.DeepCopy())
		switch {
		case err == nil || errors.Is(err, store.ErrExists):
			wrote = true
		case isRefusal(err):
			k.log.Warn("the API server does not take what it has lost: it stays in use here",
				"object", file, "err", err)
		default:
			return wrote, fmt.Errorf("write %s again, which the API server has lost: %w", file, err)
		}
	}
	return wrote, nil
}

// isRefusal says whether the API server would answer the same again.
func isRefusal(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
}

// The reasons for which an object stays in use that the API server does not have.
const (
	lostInRestore = "is missing since Kubernetes' API went back to an older state: apply it again, and if it is to go, delete it then"
	lostWithAll   = "is missing, as all of its kind are, since Kubernetes' API was away: apply it again, and if it is to go, delete it then or restart the agent"
)

// adopt makes a listing the mirror.
func (k *Kube) adopt(m *mirror, l *listing, p proof) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := map[string]*store.Source{}
	why := ""
	switch {
	case p == back:
		m.generation++
		if m.restores == k.restores { // the first to notice
			k.restores++
			k.lookAnew(func(other *mirror) bool { return other != m })
		}
		m.anchor, m.gone = "", nil // its version is of another history
		m.cluster = ""
		why = lostInRestore
		k.log.Warn("Kubernetes' API went back to an older state, or is another cluster's: everything was listed again, and what is missing there stays in use",
			"resource", m.name(), "version", l.version, "before", m.version)
	case p == unproven && len(l.objects) == 0:
		why = lostWithAll
	}
	for file, known := range m.entries {
		switch {
		case l.objects[file] != nil || known.lost:
		case why != "":
			k.lose(m, file, why, changed)
		default:
			k.remove(m, file, l.version, changed)
		}
	}
	for _, o := range l.objects {
		k.put(m, o, changed)
	}
	m.anchor = m.newest()
	m.version, m.listed, m.restores = l.version, true, k.restores
	changed[m.name()] = nil                                // what was wrong with the resource as a whole
	k.nodesChanged = k.nodesChanged || m.resource == nodes // also where there are none
	k.enter(changed)
}
