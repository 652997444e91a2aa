package epochs

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// dekPatience is how long a peer's exchange waits for an epoch's key to be unwrapped.
const dekPatience = 3 * time.Second

// DEK is a copy of an epoch's key for one exchange. An epoch that a peer has heard
// of first is looked for in the store; one that is not unwrapped yet is waited for.
func (k *Keeper) DEK(ctx context.Context, number uint64) ([]byte, error) {
	k.mu.Lock()
	_, found := k.epochs[number]
	k.mu.Unlock()
	if !found {
		k.Reload()
	}
	ctx, cancel := context.WithTimeout(ctx, dekPatience)
	defer cancel()
	for {
		dek, wait, err := k.tryDEK(number)
		if wait == nil {
			return dek, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// tryDEK returns a channel to wait for when the key may come.
func (k *Keeper) tryDEK(number uint64) (dek []byte, wait <-chan struct{}, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.epochs[number]
	switch {
	case e == nil:
		return nil, nil, fmt.Errorf("epoch %d is not in the store", number)
	case e.refused != nil:
		return nil, nil, e.refused
	case !k.live(e):
		return nil, nil, fmt.Errorf("epoch %d has ended", number)
	case e.dek != nil:
		dek, err = e.dek.Copy()
		return dek, nil, err
	case e.err != nil:
		e.asked = true // at its next try
		return nil, nil, e.err
	case !slices.Contains(k.wanted(nil), e):
		return nil, nil, fmt.Errorf("epoch %d is two behind", number)
	}
	e.asked = true
	k.opt.Signal.Poke()
	return nil, k.opt.Signal.Changed(), fmt.Errorf("the key of epoch %d is not unwrapped yet",
		number)
}
