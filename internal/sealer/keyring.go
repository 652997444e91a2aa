package sealer

import (
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/sealer/control"
)

// sa is one key and what was done with it. The window is the worker's while the SA is in a snapshot
// that it may have.
type sa struct {
	secret *secret // in the vault
	aead   cipher.AEAD
	window window
	// since is the change before which packets for another key of this SA's number were put in the
	// tap.
	since uint64
}

func (r *keyring) newSA(key *control.Key) (*sa, error) {
	block, err := aes.NewCipher(key.Key[:])
	if err != nil {
		return nil, fmt.Errorf("expand key: %w", err)
	}
	defer wipeObject(block)
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("expand key: %w", err)
	}
	secret, err := r.vault.get()
	if err != nil {
		return nil, err
	}
	if aead, err = moveAEAD(aead, secret.cipher[:]); err != nil {
		r.vault.put(secret)
		return nil, err
	}
	secret.key = *key
	return &sa{secret: secret, aead: aead}, nil
}

// snapshot is all keys, as the worker sees them during one frame. It does not change.
type snapshot struct {
	out, in map[uint32]*sa
}

// of is the half of a direction.
func (s *snapshot) of(out bool) map[uint32]*sa {
	if out {
		return s.out
	}
	return s.in
}

// keyring is the keys that the process holds. The worker reads them without a lock; who changes
// them makes a new snapshot, waits until the worker has left the frame in which it may have had the
// old one, and only then wipes what was removed.
type keyring struct {
	vault   vault
	mu      sync.Mutex // of who changes them
	current atomic.Pointer[snapshot]
	frames  atomic.Uint64 // odd: the worker is within one
	// changes counts the keys to seal with that were removed or replaced, and drained is the one of
	// them after which the tap was empty: all that was meant for such a key was read.
	changes, drained atomic.Uint64
	left             map[uint32]uint64 // SAs that have lost their key, in which change: not drained
}

func newKeyring() *keyring {
	r := &keyring{left: map[uint32]uint64{}}
	r.current.Store(&snapshot{out: map[uint32]*sa{}, in: map[uint32]*sa{}})
	return r
}

// enter is the keys for one frame, until leave. By the worker alone.
func (r *keyring) enter() *snapshot {
	r.frames.Add(1)
	return r.current.Load()
}

func (r *keyring) leave() { r.frames.Add(1) }

// replace has the worker use another snapshot, and wipes what is no longer in it. With r.mu held.
func (r *keyring) replace(next *snapshot, gone []*sa) {
	r.current.Store(next)
	if at := r.frames.Load(); at%2 == 1 {
		for r.frames.Load() == at {
			time.Sleep(20 * time.Microsecond)
		}
	}
	for _, old := range gone {
		r.vault.put(old.secret)
	}
}

// lost notes that an SA to seal with has lost its key: what lies in the tap for it carries numbers
// of that key. With r.mu held.
func (r *keyring) lost(id uint32) {
	drained := r.drained.Load()
	maps.DeleteFunc(r.left, func(_ uint32, change uint64) bool { return change <= drained })
	r.left[id] = r.changes.Add(1)
}

// settled says whether nothing in the tap can be for another key of the SA's number. By the worker
// alone.
func (r *keyring) settled(s *sa) bool { return s.since <= r.drained.Load() }

func (r *keyring) copy() *snapshot {
	now := r.current.Load()
	next := &snapshot{
		out: make(map[uint32]*sa, len(now.out)+1), in: make(map[uint32]*sa, len(now.in)+1),
	}
	for _, out := range []bool{true, false} {
		for id, s := range now.of(out) {
			next.of(out)[id] = s
		}
	}
	return next
}

// install adds keys. All are taken or, on an error, none.
func (r *keyring) install(keys []control.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.copy()
	var gone, made []*sa
	for i := range keys {
		key := &keys[i]
		half := next.of(key.Out)
		old := half[key.SA]
		if old != nil && old.secret.key.Fingerprint == key.Fingerprint {
			continue
		}
		s, err := r.newSA(key)
		if err != nil {
			for _, s := range made {
				r.vault.put(s.secret)
			}
			return err
		}
		made = append(made, s)
		half[key.SA] = s
		if old != nil {
			gone = append(gone, old)
		}
		if key.Out {
			if old != nil {
				r.lost(key.SA)
			}
			s.since = r.left[key.SA]
		}
	}
	if len(made) > 0 {
		r.replace(next, gone)
	}
	return nil
}

// remove forgets those of the keys that are held under the same fingerprint.
func (r *keyring) remove(keys []control.Held) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.copy()
	var gone []*sa
	for _, key := range keys {
		half := next.of(key.Out)
		if old := half[key.SA]; old != nil && old.secret.key.Fingerprint == key.Fingerprint {
			delete(half, key.SA)
			gone = append(gone, old)
			if key.Out {
				r.lost(key.SA)
			}
		}
	}
	if len(gone) > 0 {
		r.replace(next, gone)
	}
}

// each calls f with every key, which it must not keep. No key comes or goes meanwhile.
func (r *keyring) each(f func(key *control.Key) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.current.Load()
	for _, out := range []bool{true, false} {
		for _, s := range now.of(out) {
			if err := f(&s.secret.key); err != nil {
				return err
			}
		}
	}
	return nil
}

// wipe forgets everything, once there is no worker any more.
func (r *keyring) wipe() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current.Store(&snapshot{out: map[uint32]*sa{}, in: map[uint32]*sa{}})
	r.vault.close()
}
