package keys

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/schedule"
)

// sessionMax is how long an exchange may keep an epoch's keys from being cleaned up.
const sessionMax = 2 * time.Minute

// installer is how package handshake reaches the datapath.
type installer struct{ m *Manager }

// State implements handshake.Installer. From now until the exchange has ended, nobody
// removes the peer's keys of that epoch.
func (i installer) State(name string, number uint64) (handshake.State, error) {
	m := i.m
	defer m.kernel.lock(name)()
	if err := m.beginSession(name, number); err != nil {
		return handshake.State{}, err
	}
	groups, sealing := m.kernel.of(name)
	now, nibble := m.clock.Boot(), Nibble(number)
	tx, rx := m.kernel.pair(name)
	if other, ok := m.inTheWay(name, number, groups, sealing); ok && tx.id != 0 && rx.id != 0 && m.alternative(number) {
		return handshake.State{}, fmt.Errorf("epoch %d would take the place of epoch %d, which is in use still", number, other)
	}
	state := handshake.State{Lanes: m.opt.Datapath.Lanes()}
	valid := func(h held) bool { return h.number == number && !h.mixed && now < h.deadline }
	if h, ok := groups[group{false, nibble}]; ok && valid(h) {
		state.RX = h.id
	}
	if h, ok := groups[group{true, nibble}]; ok && valid(h) && m.kernel.whole(h) {
		// Keys for sending that were never switched to may be those of an exchange that broke off.
		if with, ok := groups[group{true, sealing}]; ok && sealing != 0 && with.number >= number {
			state.TX = h.id
		}
	}
	return state, nil
}

// InstallRX implements handshake.Installer.
func (i installer) InstallRX(name string, keys *schedule.Direction) error {
	defer i.m.kernel.lock(name)()
	deadline, err := i.m.deadline(keys.Number)
	if err != nil {
		return err
	}
	return i.m.kernel.install(name, false, keys, deadline)
}

// InstallTX implements handshake.Installer. It switches even from a newer epoch: the
// peer has just told that it holds these keys, which may be the only ones it has.
func (i installer) InstallTX(name string, keys *schedule.Direction) error {
	defer i.m.kernel.lock(name)()
	deadline, err := i.m.deadline(keys.Number)
	if err != nil {
		return err
	}
	if err := i.m.kernel.install(name, true, keys, deadline); err != nil {
		return err
	}
	return i.m.kernel.seal(name, Nibble(keys.Number))
}

// inTheWay finds keys of another epoch with the same number on the wire that packets
// are sealed with, or may be still.
func (m *Manager) inTheWay(name string, number uint64, groups map[group]held, sealing uint8) (uint64, bool) {
	now, nibble := m.clock.Boot(), Nibble(number)
	for g, h := range groups {
		if g.nibble != nibble || h.number == number || now >= h.deadline {
			continue
		}
		// Keys for receiving that were never seen to be left, but bring nothing, stand in no way.
		if (g.out && nibble == sealing) || (!g.out && !h.quiet(m.opt.Drain)) {
			return h.number, true
		}
	}
	return 0, false
}

// alternative says whether there is another epoch to meet in.
func (m *Manager) alternative(number uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.epochs {
		if e.Number != number && e.dek != nil && m.live(e) {
			return true
		}
	}
	return false
}

// beginSession notes that an exchange is under way.
func (m *Manager) beginSession(name string, number uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[name]
	if p == nil || p.gone {
		return fmt.Errorf("%s: %w", name, handshake.ErrUnknownNode)
	}
	p.session, p.sessionAt = number, m.clock.Boot()
	return nil
}

// deadline is when an epoch's keys expire that are installed now, by Clock.Boot.
func (m *Manager) deadline(number uint64) (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.epochs[number]
	if e == nil || !m.live(e) {
		return 0, fmt.Errorf("epoch %d has ended: %w", number, handshake.ErrNoEpoch)
	}
	return m.until(e), nil
}

// known says whether a peer may talk to this node.
func (m *Manager) known(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[name]
	return p != nil && !p.gone
}

// admit says whether a peer has an address: no other may connect, as no other's ESP is opened.
func (m *Manager) admit(addr netip.Addr) bool {
	known := m.addresses.Load()
	return known != nil && (*known)[addr]
}

// dekPatience is how long a peer's exchange waits for an epoch's key to be unwrapped.
const dekPatience = 3 * time.Second

// dekCopy is a copy of an epoch's key for one exchange. An epoch that a peer has heard
// of first is looked for in the store; one that is not unwrapped yet is waited for.
func (m *Manager) dekCopy(ctx context.Context, number uint64) ([]byte, error) {
	m.mu.Lock()
	_, found := m.epochs[number]
	m.mu.Unlock()
	if !found {
		m.reload()
	}
	ctx, cancel := context.WithTimeout(ctx, dekPatience)
	defer cancel()
	for {
		dek, wait, err := m.tryDEK(number)
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
func (m *Manager) tryDEK(number uint64) (dek []byte, wait <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.epochs[number]
	switch {
	case e == nil:
		return nil, nil, fmt.Errorf("epoch %d is not in the store", number)
	case e.refused != nil:
		return nil, nil, e.refused
	case !m.live(e):
		return nil, nil, fmt.Errorf("epoch %d has ended", number)
	case e.dek != nil:
		dek, err = e.dek.Copy()
		return dek, nil, err
	case e.err != nil:
		e.asked = true // at its next try
		return nil, nil, e.err
	case !slices.Contains(m.wanted(), e):
		return nil, nil, fmt.Errorf("epoch %d is two behind", number)
	}
	e.asked = true
	m.pokeLocked()
	return nil, m.changed, fmt.Errorf("the key of epoch %d is not unwrapped yet", number)
}
