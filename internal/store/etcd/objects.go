package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// PutEndpoint implements store.Store: when it returns, a majority of etcd's members has the
// endpoint.
func (e *Etcd) PutEndpoint(ep *v1alpha1.Endpoint) error {
	own := *ep
	data, err := store.Encode(&own)
	if err == nil {
		err = e.write(e.keyOf(&own), data)
	}
	if err != nil {
		return fmt.Errorf("publish endpoint %q: %w", own.Metadata.Key(), err)
	}
	return nil
}

// DeleteEndpoint implements store.Store. It is about this node's endpoints alone. One that an older
// state of etcd has lost is put and deleted: whoever keeps it in use learns by that that it is to
// go.
func (e *Etcd) DeleteEndpoint(key string) error {
	path := e.endpointsOf(e.opt.Node) + key
	e.mu.Lock()
	known := e.mirror.entries[path]
	lost := known != nil && known.lost
	e.mu.Unlock()
	ctx, cancel, err := e.call(context.Background())
	if err != nil {
		return fmt.Errorf("withdraw endpoint %q: %w", key, err)
	}
	defer cancel()
	if lost {
		_, err = e.client.Put(ctx, path, string(known.own))
	}
	if err == nil {
		_, err = e.client.Delete(ctx, path)
	}
	if err != nil {
		return fmt.Errorf("withdraw endpoint %q: %w", key, e.explain(err))
	}
	return nil
}

// PutObject implements store.Editor.
func (e *Etcd) PutObject(o v1alpha1.Object) error {
	data, err := store.Encode(o)
	if err == nil {
		err = e.write(e.keyOf(o), data)
	}
	if err != nil {
		return fmt.Errorf("write %s %s: %w", o.Type().Kind, o.Meta().Key(), err)
	}
	return nil
}

// DeleteObject implements store.Editor. An endpoint goes from every node that has published it.
func (e *Etcd) DeleteObject(kind, key string) error {
	ctx, cancel, err := e.call(context.Background())
	if err != nil {
		return err
	}
	defer cancel()
	paths := []string{e.dirOf(kind) + key}
	if kind == v1alpha1.KindEndpoint {
		if paths, err = e.publishers(ctx, key); err != nil {
			return err
		}
	}
	var deleted int64
	for _, path := range paths {
		answer, err := e.client.Delete(ctx, path)
		if err != nil {
			return fmt.Errorf("delete %s %s: %w", kind, key, e.explain(err))
		}
		deleted += answer.Deleted
	}
	if deleted == 0 {
		return fmt.Errorf("delete %s %s: %w", kind, key, store.ErrNotFound)
	}
	return nil
}

// publishers are the keys that hold an endpoint.
func (e *Etcd) publishers(ctx context.Context, key string) (paths []string, err error) {
	dir := e.dirOf(v1alpha1.KindEndpoint)
	all, err := e.client.Get(ctx, dir, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("look for endpoint %s: %w", key, e.explain(err))
	}
	for _, kv := range all.Kvs {
		if _, name, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), dir), "/"); ok &&
			name == key {
			paths = append(paths, string(kv.Key))
		}
	}
	return paths, nil
}

// write puts a value where it is not yet.
func (e *Etcd) write(key string, value []byte) error {
	e.mu.Lock()
	known := e.mirror.entries[key]
	same := known != nil && !known.lost && bytes.Equal(known.own, value)
	e.mu.Unlock()
	ctx, cancel, err := e.call(context.Background())
	if err != nil {
		return err
	}
	defer cancel()
	if same {
		// What it held a moment ago. It may have been deleted meanwhile.
		if now, err := e.get(ctx, key); err == nil && now != nil && bytes.Equal(now.Value, value) {
			return nil
		}
	}
	_, err = e.client.Put(ctx, key, string(value))
	return e.explain(err)
}

func (e *Etcd) get(ctx context.Context, key string) (*mvccpb.KeyValue, error) {
	answer, err := e.client.Get(ctx, key)
	if err != nil || len(answer.Kvs) == 0 {
		return nil, e.explain(err)
	}
	return answer.Kvs[0], nil
}

// create puts a key that is not there, in one step.
func (e *Etcd) create(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(value))).Commit()
	if err != nil {
		return e.explain(err)
	}
	if !answer.Succeeded {
		return store.ErrExists
	}
	return nil
}

// createObject makes an object for one caller only. One that an older state of etcd has lost is
// taken still.
func (e *Etcd) createObject(o v1alpha1.Object) error {
	data, err := store.Encode(o)
	if err == nil {
		err = e.Away()
	}
	if err == nil {
		// What was lost in a restore is found out, and written again, before its number can be
		// taken.
		err = e.refresh(context.Background())
	}
	key := e.keyOf(o)
	e.mu.Lock()
	known := e.mirror.entries[key] != nil
	e.mu.Unlock()
	if err == nil && known {
		err = store.ErrExists
	}
	if err == nil {
		err = e.create(context.Background(), key, data)
	}
	if err != nil {
		return fmt.Errorf("create %s %s: %w", o.Type().Kind, o.Meta().Name, err)
	}
	return nil
}

// Pod asks etcd for one pod, nil for none: it may have been declared a moment ago. One that is
// declared wrongly is an error.
func (e *Etcd) Pod(key string) (*v1alpha1.Pod, error) {
	ctx, cancel, err := e.call(context.Background())
	if err != nil {
		return nil, err
	}
	defer cancel()
	path := e.dirOf(v1alpha1.KindPod) + key
	kv, err := e.get(ctx, path)
	if err != nil || kv == nil {
		return nil, err
	}
	s := e.sourceOf(path, kv.Value, "")
	if len(s.Objects) == 1 {
		return s.Objects[0].Object.(*v1alpha1.Pod), nil
	}
	for _, problem := range s.Errors {
		return nil, problem
	}
	return nil, nil
}

// Identities implements store.IdentityStore.
func (e *Etcd) Identities() ([]*v1alpha1.Identity, error) {
	s, err := e.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("read identities: %w", err)
	}
	return slices.Collect(maps.Values(s.Identities)), nil
}

// Identity implements store.IdentityStore. It asks etcd, not the mirror.
func (e *Etcd) Identity(number uint32) (*v1alpha1.Identity, error) {
	name := strconv.FormatUint(uint64(number), 10)
	if err := e.Away(); err != nil {
		return nil, fmt.Errorf("read identity %d: %w", number, err)
	}
	if err := e.refresh(context.Background()); err != nil {
		return nil, fmt.Errorf("read identity %d: %w", number, err)
	}
	key := e.dirOf(v1alpha1.KindIdentity) + name
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := e.history.Snapshot().Identities[name]; i != nil {
		return i, nil
	}
	if e.mirror.entries[key] != nil {
		return nil, fmt.Errorf("read identity %d: %s cannot be used: correct or remove it", number,
			key)
	}
	return nil, nil
}

// CreateIdentity implements store.IdentityStore.
func (e *Etcd) CreateIdentity(identity *v1alpha1.Identity) error {
	i := *identity
	return e.createObject(&i)
}

// Epochs implements store.EpochStore.
func (e *Etcd) Epochs() ([]*v1alpha1.Epoch, error) {
	s, err := e.Snapshot()
	if err != nil {
		return nil, fmt.Errorf("read epochs: %w", err)
	}
	return slices.SortedFunc(maps.Values(s.Epochs), func(a, b *v1alpha1.Epoch) int {
		return cmp.Compare(a.Spec.Number, b.Spec.Number)
	}), nil
}

// CreateEpoch implements store.EpochStore.
func (e *Etcd) CreateEpoch(epoch *v1alpha1.Epoch) error {
	o := *epoch
	return e.createObject(&o)
}

// ReplaceEpoch implements store.EpochStore, by a transaction that holds if nobody has touched the
// key meanwhile.
func (e *Etcd) ReplaceEpoch(epoch *v1alpha1.Epoch, old []byte) error {
	o := *epoch
	data, err := store.Encode(&o)
	if err == nil {
		err = e.exchange(e.keyOf(&o), data, old)
	}
	if err != nil {
		return fmt.Errorf("replace epoch %d: %w", o.Spec.Number, err)
	}
	return nil
}

func (e *Etcd) exchange(key string, value, old []byte) error {
	ctx, cancel, err := e.call(context.Background())
	if err != nil {
		return err
	}
	defer cancel()
	now, err := e.get(ctx, key)
	if err != nil {
		return err
	}
	if now == nil || !holdsWrapped(key, now.Value, old) {
		return store.ErrChanged
	}
	answer, err := e.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=",
		now.ModRevision)).
		Then(clientv3.OpPut(key, string(value))).Commit()
	if err == nil && !answer.Succeeded {
		err = store.ErrChanged
	}
	if errors.Is(err, store.ErrChanged) {
		return err
	}
	return e.explain(err)
}

// holdsWrapped says whether a value is an epoch with this wrapped key.
func holdsWrapped(key string, value, wrapped []byte) bool {
	objects, _ := store.Decode(key, value)
	for _, o := range objects {
		if epoch, ok := o.Object.(*v1alpha1.Epoch); ok && bytes.Equal(epoch.Spec.Wrapped, wrapped) {
			return true
		}
	}
	return false
}

// DeleteEpoch implements store.EpochStore.
func (e *Etcd) DeleteEpoch(number uint64) error {
	err := e.DeleteObject(v1alpha1.KindEpoch, v1alpha1.EpochName(number))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}
