package clock

import "sync"

// Signal tells of changes: to one loop, which looks at everything when it is woken, and to
// whoever waits for something in particular. It is safe for concurrent use, and calls nothing,
// so that it may be used under any lock.
type Signal struct {
	wake    chan struct{}
	mu      sync.Mutex
	changed chan struct{}
}

// NewSignal makes a Signal.
func NewSignal() *Signal {
	return &Signal{wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Poke wakes the loop and whoever waits for a change.
func (s *Signal) Poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Wake is what the loop waits for.
func (s *Signal) Wake() <-chan struct{} { return s.wake }

// Changed is closed at the next change. Take it before looking at what may change, or under the
// lock that the change is made under.
func (s *Signal) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}
