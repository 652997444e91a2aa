package keys

import (
	"fmt"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/schedule"
)

// sessionMax is how long an exchange may keep an epoch's keys from being cleaned up.
const sessionMax = 2 * time.Minute

// installer is how package handshake reaches the datapath.
type installer struct{ p *peers }

// State implements handshake.Installer. From now until the exchange has ended, nobody
// removes the peer's keys of that epoch.
func (i installer) State(name string, number uint64) (handshake.State, error) {
	p := i.p
	defer p.table.Lock(name)()
	if err := p.beginSession(name, number); err != nil {
		return handshake.State{}, err
	}
	state, now := p.table.Of(name), p.clock.Boot()
	tx, rx := p.table.Pair(name)
	other, ok := state.InTheWay(number, now, p.opt.Drain)
	if ok && tx.ID != 0 && rx.ID != 0 && p.alternative(number) {
		return handshake.State{}, fmt.Errorf("epoch %d would take the place of epoch %d, which is in use still", number, other)
	}
	out := handshake.State{Lanes: p.table.Lanes()}
	out.RX, out.TX = state.Valid(number, now)
	return out, nil
}

// InstallRX implements handshake.Installer.
func (i installer) InstallRX(name string, keys *schedule.Direction) error {
	return i.install(name, false, keys)
}

// InstallTX implements handshake.Installer. It switches even from a newer epoch: the
// peer has just told that it holds these keys, which may be the only ones it has.
func (i installer) InstallTX(name string, keys *schedule.Direction) error {
	return i.install(name, true, keys)
}

func (i installer) install(name string, out bool, keys *schedule.Direction) error {
	defer i.p.table.Lock(name)()
	deadline, ok := i.p.epochs.Until(keys.Number)
	if !ok {
		return fmt.Errorf("epoch %d has ended: %w", keys.Number, handshake.ErrNoEpoch)
	}
	if err := i.p.table.Install(name, out, keys, deadline); err != nil || !out {
		return err
	}
	return i.p.table.Seal(name, schedule.WireNumber(keys.Number))
}

// alternative says whether there is another epoch to meet in.
func (p *peers) alternative(number uint64) bool {
	return slices.ContainsFunc(p.epochs.Readable(), func(n uint64) bool { return n != number })
}

// beginSession notes that an exchange is under way.
func (p *peers) beginSession(name string, number uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.byName[name]
	if q == nil || q.gone {
		return fmt.Errorf("%s: %w", name, handshake.ErrUnknownNode)
	}
	q.session, q.sessionAt = number, p.clock.Boot()
	return nil
}
