package keys

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

// versionDue has the leader ask for the KEK's version, and returns when to look again. Whoever comes into office
// does not ask at once: it may be the next of many in a row.
func (m *Manager) versionDue(ctx context.Context) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Boot()
	k, ok := m.opt.KEK.(versioned)
	if !ok || m.opt.VersionEvery < 0 || m.target == 0 {
		return now + tick
	}
	if !m.leader {
		m.due.version = 0
		return now + tick
	}
	if m.due.version == 0 {
		m.due.version = now + clock.Spread(m.opt.VersionEvery/10)
	}
	if now < m.due.version || m.version.running {
		return max(m.due.version, now+time.Millisecond)
	}
	m.due.version = now + m.opt.VersionEvery*9/10 + rand.N(m.opt.VersionEvery/5+1)
	m.version.running = true
	m.work.Go(func() { m.checkVersion(ctx, k) })
	return m.due.version
}

// checkVersion asks once, and wraps live epochs again that another version has wrapped: it may be disabled then.
func (m *Manager) checkVersion(ctx context.Context, k versioned) {
	ask, cancel := context.WithTimeout(ctx, unwrapTime)
	version, err := k.Version(ask)
	cancel()
	if err == nil && version != "" {
		m.mu.Lock()
		m.version.now = version
		m.mu.Unlock()
		for _, old := range m.wrappedByOthers(version) {
			err = errors.Join(err, m.rewrap(ctx, old))
		}
	}
	if ctx.Err() == nil {
		if err != nil {
			err = fmt.Errorf("follow the KEK's version: %w", err)
		}
		m.problem("kek version", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version.running = false
	m.pokeLocked()
}

// wrappedByOthers are the live epochs that this KEK has wrapped with another version, and that are readable here.
func (m *Manager) wrappedByOthers(version string) []Epoch {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Epoch
	for _, e := range m.sorted() {
		// Another KEK's epoch stays as it is: nodes that have that one configured still could not read it.
		if e.dek != nil && m.live(e) && e.KEK == m.opt.KEK.URL() && e.KEKVersion != version {
			out = append(out, e.Epoch)
			m.journal.Add(audit.Record{Event: audit.EventVersion, Epoch: e.Number, Detail: "the KEK's version is now " + version})
		}
	}
	return out
}

// rewrap publishes the same key of an epoch, wrapped by the KEK's present version.
func (m *Manager) rewrap(ctx context.Context, old Epoch) error {
	secret, err := m.secretCopy(old.Number)
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
	began := m.clock.Boot()
	err = secret.Use(func(dek []byte) (err error) {
		e.Wrapped, e.KEKVersion, err = m.opt.KEK.Wrap(wrapCtx, dek, e.binding(m.opt.Cluster))
		return err
	})
	m.journal.Add(audit.Record{Event: audit.EventWrapped, Epoch: e.Number, Outcome: kek.Outcome(err), Detail: text(err), Latency: m.clock.Boot() - began})
	if err != nil {
		return fmt.Errorf("wrap epoch %d again: %w", e.Number, err)
	}
	m.storeLock.Lock()
	defer m.storeLock.Unlock()
	err = m.opt.Store.ReplaceEpoch(e, old.Wrapped)
	if errors.Is(err, ErrChanged) {
		return nil // removed, or another leader was faster
	}
	if err != nil {
		return fmt.Errorf("publish epoch %d, wrapped again: %w", e.Number, err)
	}
	m.log.Info("wrapped an epoch's key again: the KEK has a new version", "epoch", e.Number, "was", old.KEKVersion, "is", e.KEKVersion)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counters.Rewraps++
	if m.epochs[e.Number] != nil {
		m.add(e, m.seen.Highest)
	}
	return nil
}

// secretCopy is a copy of an epoch's key, nil if this node does not hold it.
func (m *Manager) secretCopy(number uint64) (*secmem.Secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.epochs[number]
	if e == nil || e.dek == nil {
		return nil, nil
	}
	dek, err := e.dek.Copy()
	if err != nil {
		return nil, err
	}
	return secmem.Take(dek)
}

// rewrapped takes over that an epoch's key was wrapped again. Whoever holds the key keeps it; it was made once, as
// the epoch's date tells. The caller holds mu.
func (m *Manager) rewrapped(e *epoch, now Epoch) {
	if bytes.Equal(e.Wrapped, now.Wrapped) {
		return
	}
	e.Epoch = now
	if e.dek == nil && e.refused == nil {
		e.err, e.failures = nil, 0
		e.nextTry = m.clock.Boot() + clock.Spread(m.span())
	}
	m.journal.Add(audit.Record{Event: audit.EventRewrapped, Epoch: e.Number})
}
