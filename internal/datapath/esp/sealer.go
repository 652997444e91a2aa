package esp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/keys/secmem"
)

// SealerKey is a key that the sealer is to have, or has.
type SealerKey struct {
	Out bool
	// ID is node index << 10 | epoch << 6 | lane, as in the maps.
	ID          uint32
	Fingerprint uint64
	Key         [32]byte
	Salt        [4]byte
}

// Wipe zeroes the key and its salt.
func (k *SealerKey) Wipe() { k.Key, k.Salt = [32]byte{}, [4]byte{} }

// String gives nothing away.
func (k SealerKey) String() string { return "key of the sealer" }

// GoString gives nothing away either.
func (k SealerKey) GoString() string { return k.String() }

type sealerRef struct {
	out bool
	id  uint32
}

// sealerKeys are copies of the keys that the sealer is to have: those of the highest lane of each
// direction, for as long as their SA lives. A sealer that dies takes its own with it. Guarded by
// Associations.mu.
type sealerKeys struct {
	held    map[sealerRef]sealerCopy
	changed chan struct{}
}

type sealerCopy struct {
	fingerprint uint64
	secret      *secmem.Secret // key and salt
}

func newSealerKeys() sealerKeys {
	return sealerKeys{held: map[sealerRef]sealerCopy{}, changed: make(chan struct{}, 1)}
}

func (s *sealerKeys) poke() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *sealerKeys) put(k *SealerKey) error {
	s.forget(k.Out, k.ID)
	raw := append(append(make([]byte, 0, 36), k.Key[:]...), k.Salt[:]...)
	secret, err := secmem.Take(raw)
	if err != nil {
		return fmt.Errorf("keep a key for the sealer: %w", err)
	}
	s.held[sealerRef{k.Out, k.ID}] = sealerCopy{k.Fingerprint, secret}
	s.poke()
	return nil
}

func (s *sealerKeys) forget(out bool, id uint32) {
	ref := sealerRef{out, id}
	if was, ok := s.held[ref]; ok {
		was.secret.Release()
		delete(s.held, ref)
		s.poke()
	}
}

func (s *sealerKeys) close() {
	for ref := range s.held {
		s.forget(ref.out, ref.id)
	}
}

// HasSealer says whether a sealer takes what comes in bulk.
func (a *Associations) HasSealer() bool { return a.writer.status.Sealer }

// UseSealer has a sealer take what comes in bulk, or none, for the reason that is given: before SAs
// are installed, and before anybody else uses the Associations.
func (a *Associations) UseSealer(noSealer string) {
	a.writer.status.Sealer, a.writer.status.NoSealer = noSealer == "", noSealer
}

// SealerChanged tells that the keys that the sealer is to have may be others than before.
func (a *Associations) SealerChanged() <-chan struct{} { return a.sealer.changed }

// SealerKeys names the keys that the sealer is to have, without the secrets.
func (a *Associations) SealerKeys() []SealerKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []SealerKey
	for ref, c := range a.sealer.held {
		list = append(list, SealerKey{Out: ref.out, ID: ref.id, Fingerprint: c.fingerprint})
	}
	return list
}

// SealerSecret fills in the key and the salt of one of SealerKeys; false if it is gone by now. The
// caller wipes it.
func (a *Associations) SealerSecret(k *SealerKey) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.sealer.held[sealerRef{k.Out, k.ID}]
	if !ok || c.fingerprint != k.Fingerprint {
		return false
	}
	return c.secret.Use(func(secret []byte) error {
		copy(k.Key[:], secret)
		copy(k.Salt[:], secret[len(k.Key):])
		return nil
	}) == nil
}

// AdoptSealerKey takes over a key that a sealer has had from an earlier agent, if it is that of an
// SA in use which is the sealer's. False says that the sealer must forget it. A fingerprint is
// public: what this agent has itself given the sealer is not replaced.
func (a *Associations) AdoptSealerKey(k *SealerKey) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return false, err
	}
	now, err := a.readSA(k.Out, k.ID)
	if err != nil || now == nil || now.state != bpf.SaLive || now.ID != k.Fingerprint {
		return false, err
	}
	if was, ok := a.sealer.held[sealerRef{k.Out, k.ID}]; ok && was.fingerprint == k.Fingerprint {
		return true, nil
	}
	ours := now.sealer // the earlier agent has marked it
	if k.Out {
		ours = now.Engine == bpf.EngineNames.Of(bpf.EngineUser)
	}
	if !ours {
		return false, nil
	}
	return true, a.sealer.put(k)
}

// MarkSealer says whether the sealer holds the key of an SA: if so, the programs hand it packets of
// that SA. An SA that is gone, or has another key by now, is left alone.
func (a *Associations) MarkSealer(k SealerKey, holds bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return err
	}
	err := a.writer.markSealer(k.ID, k.Out, k.Fingerprint, holds)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESTALE) {
		return nil
	}
	return err
}

// UnmarkSealer says that no sealer holds any key but these.
func (a *Associations) UnmarkSealer(but ...SealerKey) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); errors.Is(err, ErrEncryptionOff) {
		return nil
	} else if err != nil {
		return err
	}
	stays := make(map[sealerRef]uint64, len(but))
	for i := range but {
		stays[sealerRef{but[i].Out, but[i].ID}] = but[i].Fingerprint
	}
	var failed error
	for _, out := range []bool{true, false} {
		var marked []SealerKey
		err := a.eachSA(out, func(id uint32, sa *entry) {
			fingerprint, stay := stays[sealerRef{out, id}]
			if sa.sealer && (!stay || fingerprint != sa.ID) {
				marked = append(marked, SealerKey{Out: out, ID: id, Fingerprint: sa.ID})
			}
		})
		failed = errors.Join(failed, err)
		for _, k := range marked {
			failed = errors.Join(failed, a.writer.markSealer(k.ID, out, k.Fingerprint, false))
		}
	}
	return failed
}

// forSealer says whether an SA is one whose key the sealer gets.
func (a *Associations) forSealer(sa *SA) bool {
	if sa.Out {
		return a.HasSealer() && int(sa.Lane) == a.hookLanes()
	}
	return a.HasSealer() && sa.Last
}

// keepForSealer keeps a copy of an SA's key for the sealer.
func (a *Associations) keepForSealer(id uint32, sa *SA) error {
	k := SealerKey{Out: sa.Out, ID: id, Fingerprint: sa.ID, Key: sa.Key, Salt: sa.Salt}
	defer k.Wipe()
	return a.sealer.put(&k)
}
