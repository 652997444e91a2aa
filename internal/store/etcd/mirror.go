package etcd

import (
	"context"
	"errors"
	"hash/maphash"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// mirror is what etcd held under the prefix at one revision.
type mirror struct {
	// revision is 0 before the first listing.
	revision int64
	cluster  uint64
	// generation is another one each time etcd was found to have gone back: what was on its way
	// before counts no more.
	generation int
	entries    map[string]*entry
	// lost is how many entries are not in etcd any more and stay all the same (see lose).
	lost int
	// anchor is the key that was put last: as long as etcd has it as it was, its history is the one
	// that the mirror is of.
	anchor string
}

// entry is one key.
type entry struct {
	revision int64
	sum      uint64
	source   *store.Source
	// identity is whom an identity's number was given to first: see identityOf.
	identity string
	// own is the value of what this node writes again should etcd have lost it, and the leader's
	// name.
	own  []byte
	lost bool
}

// seed makes the sums of values; they are never told to anybody.
var seed = maphash.MakeSeed()

func newMirror() mirror { return mirror{entries: map[string]*entry{}} }

// bump is how far `etcdutl snapshot restore --bump-revision` moves on at least: nobody writes as
// much meanwhile.
const bump = 100_000_000

// refresh brings the mirror to what etcd holds at this moment or after.
func (e *Etcd) refresh(ctx context.Context) error {
	select {
	case e.asking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-e.asking }()
	e.mu.Lock()
	at := e.mirror
	anchor := at.entries[at.anchor]
	e.mu.Unlock()
	if at.revision == 0 || anchor == nil {
		return e.relist(ctx, false)
	}
	news, err := e.since(ctx, at.anchor, anchor.revision)
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return e.relist(ctx, false)
	case errors.Is(err, rpctypes.ErrFutureRev):
		return e.relist(ctx, true)
	case err != nil:
		return err
	}
	same := len(news.anchor) == 1 && news.anchor[0].ModRevision == anchor.revision &&
		sum(news.anchor[0].Value) == anchor.sum
	if !same || news.cluster != at.cluster || news.revision < at.revision ||
		news.revision-at.revision > bump {
		return e.relist(ctx, true)
	}
	if e.advance(news) {
		return nil
	}
	return e.relist(ctx, false)
}

// news is what has changed since a revision, at another.
type news struct {
	revision int64
	cluster  uint64
	changed  []*mvccpb.KeyValue
	anchor   []*mvccpb.KeyValue // as it was at its revision
	count    int64              // of all keys
	there    map[string]bool    // all keys, if not as many as expected
}

// since asks, in one step, for what was put at or after the anchor's revision, and for the anchor
// itself.
func (e *Etcd) since(ctx context.Context, anchor string, revision int64) (*news, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := e.client.Txn(ctx).Then(
		clientv3.OpGet(e.root(), clientv3.WithPrefix(), clientv3.WithMinModRev(revision)),
		clientv3.OpGet(e.root(), clientv3.WithPrefix(), clientv3.WithCountOnly()),
		clientv3.OpGet(anchor, clientv3.WithRev(revision)),
	).Commit()
	if err != nil {
		return nil, e.explain(err)
	}
	changed, count, was := answer.Responses[0].GetResponseRange(), answer.Responses[1].GetResponseRange(), answer.Responses[2].GetResponseRange()
	n := &news{revision: answer.Header.Revision, cluster: answer.Header.ClusterId,
		changed: changed.Kvs, anchor: was.Kvs, count: count.Count}
	return n, e.deleted(ctx, n)
}

// deleted finds out which keys there are, if there are fewer or more than the mirror will have.
func (e *Etcd) deleted(ctx context.Context, n *news) error {
	if e.expected(n.changed) == n.count {
		return nil
	}
	answer, err := e.client.Get(ctx, e.root(), clientv3.WithPrefix(), clientv3.WithKeysOnly(),
		clientv3.WithRev(n.revision))
	if err != nil {
		return e.explain(err)
	}
	n.there = make(map[string]bool, len(answer.Kvs))
	for _, kv := range answer.Kvs {
		n.there[string(kv.Key)] = true
	}
	return nil
}

// expected is how many keys there are if some were put and none was deleted.
func (e *Etcd) expected(put []*mvccpb.KeyValue) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	count := int64(len(e.mirror.entries) - e.mirror.lost)
	for _, kv := range put {
		if known := e.mirror.entries[string(kv.Key)]; known == nil || known.lost {
			count++
		}
	}
	return count
}

// advance takes in what has changed. ok is false if that does not explain which keys there are now.
func (e *Etcd) advance(n *news) (ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.mirror
	if n.revision <= m.revision {
		return true // a watch was faster
	}
	changed := map[string]*store.Source{}
	for _, kv := range n.changed {
		e.put(kv, changed)
	}
	if n.there != nil {
		for key, known := range m.entries {
			if !n.there[key] && !known.lost {
				e.remove(key, changed)
			}
		}
	}
	e.history.Update(changed)
	m.revision = n.revision
	return n.there == nil || len(n.there) == len(m.entries)-m.lost
}

// put enters a key's value, with mu held. changed gets what that means for the history.
func (e *Etcd) put(kv *mvccpb.KeyValue, changed map[string]*store.Source) {
	m, key := &e.mirror, string(kv.Key)
	known := m.entries[key]
	now := &entry{revision: kv.ModRevision, sum: sum(kv.Value)}
	if known != nil {
		now.identity = known.identity
	}
	if known != nil && known.lost {
		m.lost--
	}
	m.entries[key] = now
	if anchor := m.entries[m.anchor]; anchor == nil || anchor.revision <= now.revision {
		m.anchor = key
	}
	if key == e.leaderKey() || e.writesAgain(key) {
		now.own = kv.Value
	}
	if known != nil && !known.lost && known.sum == now.sum {
		now.source = known.source
		return
	}
	now.source = e.sourceOf(key, kv.Value, now.identity)
	if id := identityOf(now.source); id != "" {
		now.identity = id
	}
	changed[e.fileOf(key)] = now.source
}

// remove takes a key away, with mu held.
func (e *Etcd) remove(key string, changed map[string]*store.Source) {
	known := e.mirror.entries[key]
	if known == nil {
		return
	}
	if known.lost {
		e.mirror.lost--
	}
	delete(e.mirror.entries, key)
	changed[e.fileOf(key)] = nil
	if key == e.mirror.anchor {
		e.mirror.anchor = newest(e.mirror.entries)
	}
}

// newest is the key that was put last.
func newest(entries map[string]*entry) string {
	found := ""
	for key, x := range entries {
		if !x.lost && (found == "" || x.revision > entries[found].revision) {
			found = key
		}
	}
	return found
}

// writesAgain says whether this node writes what a key holds again, should etcd have lost it: its
// own endpoints, and what must not be given twice.
func (e *Etcd) writesAgain(key string) bool {
	switch e.kindOf(key) {
	case v1alpha1.KindIdentity, v1alpha1.KindEpoch:
		return e.opt.Node != ""
	case v1alpha1.KindEndpoint:
		return e.opt.Node != "" && strings.HasPrefix(key, e.endpointsOf(e.opt.Node))
	}
	return false
}

func sum(value []byte) uint64 { return maphash.Bytes(seed, value) }

// owned are the values that this node writes again, by key.
func (e *Etcd) owned() map[string][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string][]byte{}
	for key, x := range e.mirror.entries {
		if e.writesAgain(key) {
			out[key] = x.own
		}
	}
	return out
}
