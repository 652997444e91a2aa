package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/internal/store"
)

// listing is every key at one revision.
type listing struct {
	revision int64
	cluster  uint64
	keys     map[string]*mvccpb.KeyValue
}

// relist lists all keys and takes over what is different from the mirror. back says that etcd has
// gone back to an older state; the listing may show it, too. Then nothing is gone for not being
// listed.
func (e *Etcd) relist(ctx context.Context, back bool) error {
	for attempt := 0; ; attempt++ {
		l, err := e.list(ctx)
		if err != nil {
			return err
		}
		if back = back || e.isOlder(l); back && attempt == 0 {
			wrote, err := e.writeAgain(ctx, l)
			if err != nil {
				return err
			}
			if wrote {
				continue
			}
		}
		e.adopt(l, back)
		return nil
	}
}

// list reads all keys, page by page.
func (e *Etcd) list(ctx context.Context) (*listing, error) {
	l := &listing{keys: map[string]*mvccpb.KeyValue{}}
	for from := e.root(); from != ""; {
		answer, err := e.page(ctx, from, l.revision)
		if errors.Is(err, rpctypes.ErrCompacted) {
			l, from = &listing{keys: map[string]*mvccpb.KeyValue{}}, e.root()
			continue
		}
		if err != nil {
			return nil, err
		}
		if l.revision == 0 {
			l.revision, l.cluster = answer.Header.Revision, answer.Header.ClusterId
		}
		from = ""
		for _, kv := range answer.Kvs {
			l.keys[string(kv.Key)] = kv
			if answer.More {
				from = string(kv.Key) + "\x00"
			}
		}
	}
	return l, nil
}

func (e *Etcd) page(ctx context.Context, from string,
	revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := e.client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(e.root())),
		clientv3.WithRev(revision), clientv3.WithLimit(pageSize))
	return answer, e.explain(err)
}

// isOlder says whether a listing is of an older state than the mirror: revisions only grow.
func (e *Etcd) isOlder(l *listing) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.mirror
	if m.revision == 0 {
		return false
	}
	if l.cluster != m.cluster || l.revision < m.revision || l.revision-m.revision > bump {
		return true
	}
	for key, x := range m.entries {
		if kv := l.keys[key]; kv != nil && kv.ModRevision < x.revision {
			return true
		}
	}
	return false
}

// writeAgain writes what this node knows, an older state of etcd has not, and nobody has written
// meanwhile.
func (e *Etcd) writeAgain(ctx context.Context, l *listing) (wrote bool, err error) {
	for key, value := range e.owned() {
		if l.keys[key] != nil {
			continue
		}
		if err := e.create(ctx, key, value); err != nil && !errors.Is(err, store.ErrExists) {
			return wrote, fmt.Errorf("write %s again, which etcd has lost: %w", key, err)
		}
		wrote = true
	}
	return wrote, nil
}

// adopt makes a listing the mirror.
func (e *Etcd) adopt(l *listing, back bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m, changed := &e.mirror, map[string]*store.Source{}
	if !back && l.revision < m.revision {
		return // a watch was faster
	}
	if back {
		m.generation++
		m.anchor = "" // its revision is of another history
		e.log.Warn("etcd was restored to an older state, or is another cluster: everything was listed again, and what is missing there stays in use",
			"revision", l.revision, "before", m.revision)
	}
	for key, known := range m.entries {
		switch {
		case l.keys[key] != nil || known.lost:
		case back:
			e.lose(key, known, changed)
		default:
			e.remove(key, changed)
		}
	}
	for _, kv := range l.keys {
		e.put(kv, changed)
	}
	m.anchor = newest(m.entries)
	m.revision, m.cluster = l.revision, l.cluster
	e.history.Update(changed)
}

// lose marks what an older state of etcd has not: a mistake, so that the last good version stays in
// use.
func (e *Etcd) lose(key string, known *entry, changed map[string]*store.Source) {
	if e.kindOf(key) == "" {
		e.remove(key, changed)
		return
	}
	known.lost, known.source = true, wrong(key,
		"is missing since etcd was restored to an older state: apply it again (weft apply), and if it is to go, delete it then")
	e.mirror.lost++
	changed[key] = known.source
}
