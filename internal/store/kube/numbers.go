package kube

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// createOnce makes an object for one caller only. One that an older state of the API has lost is
// taken still.
func (k *Kube) createOnce(o v1alpha1.Object) error {
	r, out, err := toAPI(o)
	if err == nil {
		err = k.awayFrom(r)
	}
	if err == nil {
		// What was lost in a restore is found out, and written again, before its number can be
		// taken.
		err = k.refresh(k.mirrorOf(r))
	}
	if err == nil {
		k.mu.Lock()
		if k.mirrorOf(r).entries[r.file("", out.GetName())] != nil {
			err = store.ErrExists
		}
		k.mu.Unlock()
	}
	if err == nil {
		err = k.create(k.ctx, r, out)
	}
	if err != nil {
		return fmt.Errorf("create %s %s: %w", o.Type().Kind, o.Meta().Name, err)
	}
	return nil
}

// fresh is a snapshot in which one resource is as the API server has it now.
func (k *Kube) fresh(r *resource) (*store.Snapshot, error) {
	if err := k.awayFrom(r); err != nil {
		return nil, err
	}
	if err := k.refresh(k.mirrorOf(r)); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.history.Snapshot(), nil
}

// Identities implements store.IdentityStore.
func (k *Kube) Identities() ([]*v1alpha1.Identity, error) {
	s, err := k.fresh(identities)
	if err != nil {
		return nil, fmt.Errorf("read identities: %w", err)
	}
	return slices.Collect(maps.Values(s.Identities)), nil
}

// Identity implements store.IdentityStore. It asks the API server, not the mirror.
func (k *Kube) Identity(number uint32) (*v1alpha1.Identity, error) {
	name := strconv.FormatUint(uint64(number), 10)
	s, err := k.fresh(identities)
	if err != nil {
		return nil, fmt.Errorf("read identity %d: %w", number, err)
	}
	if i := s.Identities[name]; i != nil {
		return i, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if file := identities.file("", name); k.mirrorOf(identities).entries[file] != nil {
		return nil, fmt.Errorf("read identity %d: %s cannot be used: correct or remove it", number,
			file)
	}
	return nil, nil
}

// CreateIdentity implements store.IdentityStore.
func (k *Kube) CreateIdentity(identity *v1alpha1.Identity) error {
	i := *identity
	return k.createOnce(&i)
}

// Epochs implements store.EpochStore.
func (k *Kube) Epochs() ([]*v1alpha1.Epoch, error) {
	s, err := k.fresh(epochs)
	if err != nil {
		return nil, fmt.Errorf("read epochs: %w", err)
	}
	return slices.SortedFunc(maps.Values(s.Epochs), func(a, b *v1alpha1.Epoch) int {
		return cmp.Compare(a.Spec.Number, b.Spec.Number)
	}), nil
}

// CreateEpoch implements store.EpochStore.
func (k *Kube) CreateEpoch(epoch *v1alpha1.Epoch) error {
	o := *epoch
	return k.createOnce(&o)
}

// ReplaceEpoch implements store.EpochStore, by an update that holds if nobody has touched the
// object meanwhile.
func (k *Kube) ReplaceEpoch(epoch *v1alpha1.Epoch, old []byte) error {
	o := *epoch
	if err := k.exchange(&o, old); err != nil {
		return fmt.Errorf("replace epoch %d: %w", o.Spec.Number, err)
	}
	return nil
}

func (k *Kube) exchange(epoch *v1alpha1.Epoch, old []byte) error {
	r, out, err := toAPI(epoch)
	if err != nil {
		return err
	}
	ctx, cancel, err := k.call(r)
	if err != nil {
		return err
	}
	defer cancel()
	there, err := k.get(ctx, r, "", out.GetName())
	if err != nil {
		return err
	}
	if there == nil {
		return store.ErrChanged
	}
	source, _ := r.read(there)
	if len(source.Objects) != 1 ||
		!bytes.Equal(source.Objects[0].Object.(*v1alpha1.Epoch).Spec.Wrapped, old) {
		return store.ErrChanged
	}
	return k.update(ctx, r, out, there)
}

// DeleteEpoch implements store.EpochStore.
func (k *Kube) DeleteEpoch(number uint64) error {
	err := k.DeleteObject(v1alpha1.KindEpoch, v1alpha1.EpochName(number))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
}
