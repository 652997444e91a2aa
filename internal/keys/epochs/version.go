package epochs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/clock"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/secmem"
)

// versioned is a KEK that tells which version it would wrap with.
type versioned interface {
	Version(ctx context.Context) (string, error)
}

// versions is what the leader knows of the KEK's version.
type versions struct {
	running bool
	// now is the version found last, "" for none.
	now string
}

// versionDue has the leader ask for the KEK's version, and returns when to look again. Whoever was
// elected does not ask at once: it may be the next of many in a row.
func (k *Keeper) versionDue(ctx context.Context) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.clock.Boot()
	asked, ok := k.opt.KEK.(versioned)
	if !ok || k.opt.VersionEvery < 0 || k.target == 0 {
		return now + tick
	}
	if !k.leader {
		k.due.version = 0
		return now + tick
	}
	if k.due.version == 0 {
		k.due.version = now + clock.Spread(k.opt.VersionEvery/10)
	}
	if now < k.due.version || k.version.running {
		return max(k.due.version, now+time.Millisecond)
	}
	k.due.version = now + k.opt.VersionEvery*9/10 + rand.N(k.opt.VersionEvery/5+1)
	k.version.running = true
	k.work.Go(func() { k.checkVersion(ctx, asked) })
	return k.due.version
}

// checkVersion asks once, and wraps live epochs again that another version has wrapped: it may be
// disabled then.
func (k *Keeper) checkVersion(ctx context.Context, asked versioned) {
	ask, cancel := context.WithTimeout(ctx, unwrapTime)
	version, err := asked.Version(ask)
	cancel()
	if err == nil && version != "" {
		k.mu.Lock()
		k.version.now = version
		k.mu.Unlock()
		for _, old := range k.wrappedByOthers(version) {
			err = errors.Join(err, k.rewrap(ctx, old))
		}
	}
	if ctx.Err() == nil {
		if err != nil {
			err = fmt.Errorf("follow the KEK's version: %w", err)
		}
		k.opt.Problem("kek version", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version.running = false
	k.opt.Signal.Poke()
}

// wrappedByOthers are the live epochs that this KEK has wrapped with another version, and that are
// readable here.
func (k *Keeper) wrappedByOthers(version string) []Epoch {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []Epoch
	for _, e := range k.sorted() {
		// Another KEK's epoch stays as it is: nodes that have that one configured still could not
		// read it.
		if e.dek != nil && k.live(e) && e.KEK == k.opt.KEK.URL() && e.KEKVersion != version {
			out = append(out, e.Epoch)
			k.opt.Journal.Add(audit.Record{Event: audit.EventVersion, Epoch: e.Number,
				Detail: "the KEK's version is now " + version})
		}
	}
	return out
}

// rewrap publishes the same key of an epoch, wrapped by the KEK's present version.
func (k *Keeper) rewrap(ctx context.Context, old Epoch) error {
	secret, err := k.secretCopy(old.Number)
	if err != nil {
		return err
	}
	if secret == nil {
		return nil // forgotten meanwhile
	}
	defer secret.Release()
	e := old
	wrapCtx, cancel := context.WithTimeout(ctx, unwrapTime)
	defer cancel()
	began := k.clock.Boot()
	err = secret.Use(func(dek []byte) (err error) {
		e.Wrapped, e.KEKVersion, err = k.opt.KEK.Wrap(wrapCtx, dek, e.Binding(k.opt.Cluster))
		return err
	})
	k.opt.Journal.Add(audit.Record{Event: audit.EventWrapped, Epoch: e.Number,
		Outcome: kek.Outcome(err), Detail: audit.Line(err), Latency: k.clock.Boot() - began})
	if err != nil {
		return fmt.Errorf("wrap epoch %d again: %w", e.Number, err)
	}
	k.storeLock.Lock()
	defer k.storeLock.Unlock()
	err = k.opt.Store.ReplaceEpoch(e, old.Wrapped)
	if errors.Is(err, ErrChanged) {
		return nil // removed, or another leader was faster
	}
	if err != nil {
		return fmt.Errorf("publish epoch %d, wrapped again: %w", e.Number, err)
	}
	k.log.Info("wrapped an epoch's key again: the KEK has a new version", "epoch", e.Number, "was",
		old.KEKVersion, "is", e.KEKVersion)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counters.Rewraps++
	if k.epochs[e.Number] != nil {
		k.add(e, k.seen.Highest)
	}
	return nil
}

// secretCopy is a copy of an epoch's key, nil if this node does not hold it.
func (k *Keeper) secretCopy(number uint64) (*secmem.Secret, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.epochs[number]
	if e == nil || e.dek == nil {
		return nil, nil
	}
	dek, err := e.dek.Copy()
	if err != nil {
		return nil, err
	}
	return secmem.Take(dek)
}

// rewrapped takes over that an epoch's key was wrapped again. Whoever holds the key keeps it; it
// was made once, as the epoch's date tells. The caller holds mu.
func (k *Keeper) rewrapped(e *epoch, now Epoch) {
	if bytes.Equal(e.Wrapped, now.Wrapped) {
		return
	}
	e.Epoch = now
	if e.dek == nil && e.refused == nil {
		e.err, e.failures = nil, 0
		e.nextTry = k.clock.Boot() + clock.Spread(k.span())
	}
	k.opt.Journal.Add(audit.Record{Event: audit.EventRewrapped, Epoch: e.Number})
}
