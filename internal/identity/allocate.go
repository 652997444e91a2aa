package identity

import (
	"errors"
	"fmt"
	"iter"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// Numbers finds the number of each ID, by its key, among identities. Where several claim one
// ID, which only editing by hand brings about, every reader takes the same: the
// one nearest to where the search for it begins.
func Numbers(identities iter.Seq[*v1alpha1.Identity]) map[string]uint32 {
	numbers := map[string]uint32{}
	for i := range identities {
		n, key := i.Number(), i.Spec.Key()
		if n == v1alpha1.IdentityUnknown {
			continue
		}
		if known, there := numbers[key]; there {
			if start := Start(key); distance(start, n) > distance(start, known) {
				continue
			}
		}
		numbers[key] = n
	}
	return numbers
}

// Allocate is the number of an ID, which all nodes share through the store: the one that
// was given to it before, else the first free one from Start on. Any number of agents may
// allocate at once, the same identity or others: a number is claimed by creating its
// object, which works once, and whoever comes second reads who was first.
func Allocate(s store.IdentityStore, id ID) (uint32, error) {
	key := id.Key()
	known, err := s.Identities()
	if err != nil {
		return 0, fmt.Errorf("number for %s: %w", key, err)
	}
	if n, ok := Numbers(values(known))[key]; ok {
		return n, nil
	}
	taken := make(map[uint32]bool, len(known))
	for _, i := range known {
		taken[i.Number()] = true
	}
	number := Start(key)
	for range span {
		if !taken[number] {
			mine, err := claim(s, number, id)
			if err != nil {
				return 0, fmt.Errorf("number for %s: %w", key, err)
			}
			if mine {
				return number, nil
			}
		}
		number = next(number)
	}
	return 0, fmt.Errorf("number for %s: all %d are taken: remove Identity objects that nobody uses", key, span)
}

// claim creates the object of a number, or reads whose it is. What is there and cannot be
// read belongs to somebody: the number is not ours.
func claim(s store.IdentityStore, number uint32, id ID) (mine bool, err error) {
	errCreate := s.CreateIdentity(object(number, id.SPIFFE(), id.Labels))
	if errCreate == nil {
		return true, nil
	}
	there, errRead := s.Identity(number)
	switch {
	case there != nil:
		return there.Spec.Key() == id.Key(), nil
	case errors.Is(errCreate, store.ErrExists):
		return false, nil
	}
	return false, errors.Join(errCreate, errRead)
}

func values(list []*v1alpha1.Identity) iter.Seq[*v1alpha1.Identity] {
	return func(yield func(*v1alpha1.Identity) bool) {
		for _, i := range list {
			if !yield(i) {
				return
			}
		}
	}
}
