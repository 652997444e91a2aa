package ipam

import "fmt"

// SlotsExhaustedError says that the node is full.
type SlotsExhaustedError struct{ Max uint16 }

// Error names the limit.
func (e *SlotsExhaustedError) Error() string {
	return fmt.Sprintf("all %d endpoint slots of this node are in use: delete endpoints or schedule elsewhere", e.Max)
}

// Slots hands out the numbers 1 to max, next-fit like addresses.
type Slots struct {
	max    uint16
	last   uint16
	owners map[uint16]string
}

// NewSlots returns a pool of the slots 1 to max.
func NewSlots(max uint16) *Slots {
	return &Slots{max: max, owners: map[uint16]string{}}
}

// Next gives owner the next free slot after the last one given.
func (s *Slots) Next(owner string) (uint16, error) {
	for range s.max {
		s.last = s.last%s.max + 1
		if _, used := s.owners[s.last]; !used {
			s.owners[s.last] = owner
			return s.last, nil
		}
	}
	return 0, &SlotsExhaustedError{Max: s.max}
}

// Adopt gives owner a slot that it had before.
func (s *Slots) Adopt(owner string, slot uint16) error {
	if slot == 0 || slot > s.max {
		return fmt.Errorf("slot %d is not in 1-%d", slot, s.max)
	}
	if other, taken := s.owners[slot]; taken && other != owner {
		return fmt.Errorf("slot %d is taken by %s", slot, other)
	}
	s.owners[slot] = owner
	return nil
}

// Owner returns who has slot.
func (s *Slots) Owner(slot uint16) (string, bool) {
	owner, ok := s.owners[slot]
	return owner, ok
}

// Release frees slot if owner has it.
func (s *Slots) Release(owner string, slot uint16) {
	if s.owners[slot] == owner {
		delete(s.owners, slot)
	}
}

// Cursor returns the last slot that Next gave, 0 if none.
func (s *Slots) Cursor() uint16 { return s.last }

// SetCursor makes Next go on after slot.
func (s *Slots) SetCursor(slot uint16) {
	if slot <= s.max {
		s.last = slot
	}
}
