package kube

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"weft.dev/weft/internal/store"
)

// awayFile is what the errors of the API as a whole are under.
const awayFile = "store.kubernetes"

// errBehind ends a session that cannot go on where the mirror is.
var errBehind = errors.New("the watch has to begin anew")

// Watch implements store.Store. It returns when ctx ends: while the API server is away it tries
// again, and what was read last stays. The first listing is told once every resource has been
// listed.
func (k *Kube) Watch(ctx context.Context, changed func(store.Delta)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	w := &watch{kube: k, changed: changed}
	defer w.close()
	var sessions sync.WaitGroup
	for _, m := range k.mirrors {
		sessions.Go(func() { w.run(ctx, m) })
	}
	sessions.Wait()
	return nil
}

// watch is one watcher of all resources.
type watch struct {
	kube    *Kube
	telling sync.Mutex // held while a delta is delivered
	changed func(store.Delta)
	follow  *store.Follower // nil before the first listing
}

func (w *watch) close() {
	for _, r := range resources {
		w.kube.setAway(r, nil)
	}
	w.kube.mu.Lock()
	defer w.kube.mu.Unlock()
	if w.follow != nil {
		w.follow.Close()
	}
}

// run keeps one mirror current until ctx ends.
func (w *watch) run(ctx context.Context, m *mirror) {
	pause := retryMin
	for {
		connected, err := w.session(ctx, m)
		w.kube.outdate()
		if ctx.Err() != nil {
			return
		}
		if connected {
			pause = retryMin
		}
		wait := pause + rand.N(pause/2)
		switch {
		case err != nil && m.optional && notServed(err) && w.unserved(ctx, m):
			wait = unservedPause
		case err != nil && !errors.Is(err, errBehind):
			w.away(m.resource, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		pause = min(2*pause, retryMax)
	}
}

// unserved takes an optional resource that is not served for one without objects, unless some were
// listed once: nobody is known to have deleted those, so it is away.
func (w *watch) unserved(ctx context.Context, m *mirror) bool {
	k := w.kube
	former := k.formerly(ctx, m.resource)
	k.mu.Lock()
	k.unserved(m, former)
	inUse := len(m.entries) > 0
	k.mu.Unlock()
	if inUse {
		return false
	}
	w.tell(m.resource)
	return true
}

// unserved notes, with mu held, that an optional resource is not served but in a former version, if
// any. What is remembered of an earlier life stays: that a version is not served any more deletes
// nothing.
func (k *Kube) unserved(m *mirror, former string) {
	m.listed = true
	var all *store.Source
	if former != "" {
		all = aboutAll(m.resource, fmt.Sprintf("is served in version %s and not in %s, which is read, so nothing enforces what is in it: apply the definitions of a newer release, which serve %s",
			former, m.Version, m.Version))
	}
	for _, d := range k.history.InUse(m.kind) {
		if filepath.Dir(d.File) == m.name() || filepath.Dir(filepath.Dir(d.File)) == m.name() {
			all = aboutAll(m.resource, fmt.Sprintf("is not served in version %s, and what was remembered of it stays in use: have the API server serve that version, and if its objects are to go, remove policies.json in this agent's state directory and restart it",
				m.Version))
			break
		}
	}
	k.history.Update(map[string]*store.Source{m.name(): all})
}

// session brings a mirror up to date and follows a watch until that ends.
func (w *watch) session(ctx context.Context, m *mirror) (connected bool, err error) {
	k := w.kube
	if err := k.bring(ctx, m, false); err != nil {
		return false, err
	}
	w.tell(m.resource)
	k.mu.Lock()
	from := state{m.version, m.generation}
	k.mu.Unlock()
	seconds := watchSeconds + rand.Int64N(watchSeconds)
	stream, err := k.client.Resource(m.GroupVersionResource).Watch(ctx, metav1.ListOptions{
		ResourceVersion: from.version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return true, k.renew(ctx, m)
		}
		return false, k.explain(m.resource, "watch", err)
	}
	defer stream.Stop()
	err = w.events(m, stream, from)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = k.renew(ctx, m)
	}
	return true, err
}

// renew lists a resource anyway, and goes by nothing that was found out of others before.
func (k *Kube) renew(ctx context.Context, m *mirror) error {
	k.outdate()
	return k.bring(ctx, m, true)
}

// events enters what a watch sends until it ends, or the mirror is to be looked at anew.
func (w *watch) events(m *mirror, stream apiwatch.Interface, from state) error {
	for {
		select {
		case <-m.anew:
			return errBehind
		case event, ok := <-stream.ResultChan():
			if !ok {
				return nil
			}
			if err := w.kube.take(m, event, from); err != nil {
				return err
			}
			if event.Type != apiwatch.Bookmark {
				w.tell(m.resource)
			}
		}
	}
}

// state is which mirror a watch began with.
type state struct {
	version    string
	generation int
}

// take enters one event of a watch.
func (k *Kube) take(m *mirror, event apiwatch.Event, from state) error {
	if event.Type == apiwatch.Error {
		return apierrors.FromObject(event.Object)
	}
	o, ok := event.Object.(*object)
	if !ok {
		return fmt.Errorf("the API server sent a %T", event.Object)
	}
	m.asking.Lock()
	defer m.asking.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	version := o.GetResourceVersion()
	if m.generation != from.generation || !newer(version, from.version) &&
		event.Type != apiwatch.Bookmark {
		return errBehind
	}
	if !newer(version, m.version) {
		return nil // a listing was faster
	}
	changed := map[string]*store.Source{}
	switch event.Type {
	case apiwatch.Added, apiwatch.Modified:
		k.put(m, o, changed)
	case apiwatch.Deleted:
		k.remove(m, m.file(o.GetNamespace(), o.GetName()), version, changed)
	}
	k.enter(changed)
	m.version = version
	return nil
}

// tell delivers what is new, and that a resource can be read.
func (w *watch) tell(r *resource) {
	w.telling.Lock()
	defer w.telling.Unlock()
	k := w.kube
	back := k.setAway(r, nil)
	k.mu.Lock()
	if w.follow == nil {
		for _, m := range k.mirrors {
			if !m.listed {
				k.mu.Unlock()
				return
			}
		}
		w.follow = k.history.Follow().Keep()
	}
	delta := w.follow.Take()
	k.mu.Unlock()
	if back {
		k.log.Info("Kubernetes' API can be read again", "resource", r.name())
		if !delta.Listed {
			delta.Errors[awayFile] = w.troubles()
		}
	}
	if delta.Listed || len(delta.Changes) > 0 || len(delta.Errors) > 0 {
		w.changed(delta)
	}
}

// troubles is what is wrong with the API as a whole, nil for nothing.
func (w *watch) troubles() []store.ObjectError {
	err := w.kube.Away()
	if err == nil {
		return nil
	}
	return []store.ObjectError{{File: awayFile,
		Msg: err.Error() + "; the objects read last stay in use"}}
}

// away says that a resource cannot be read. Before the first listing there is nobody to be told but
// the log.
func (w *watch) away(r *resource, err error) {
	w.telling.Lock()
	defer w.telling.Unlock()
	k := w.kube
	if !k.setAway(r, err) {
		return
	}
	k.log.Warn("Kubernetes' API cannot be read", "resource", r.name(), "err", err)
	if w.follow != nil {
		w.changed(store.Delta{Errors: map[string][]store.ObjectError{awayFile: w.troubles()}})
	}
}
