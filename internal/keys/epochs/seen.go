package epochs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/statefile"
)

// seen remembers when this node first saw each epoch that is in the store, also over its restarts.
// An epoch's object says itself when it ends, and whoever may write there could prolong it; this
// node's own hard TTL counts from here. Guarded by Keeper.mu.
type seen struct {
	path string
	kept
	dirty bool
}

// kept is what the file holds. Numbers only ever rise, and outlive the epochs themselves.
type kept struct {
	Times map[uint64]time.Time `json:"first"`
	// Highest is the highest number that was ever in the store, Opened that of an epoch whose key
	// this node has had.
	Highest uint64 `json:"highest"`
	Opened  uint64 `json:"opened"`
	// Bound: this node has had the key of an epoch whose times are bound to it.
	Bound bool `json:"bound"`
}

// openSeen reads the file, if there is one. What cannot be read counts as seen for the first time,
// is told of, and is set aside.
func openSeen(path string) (*seen, error) {
	s := &seen{path: path, kept: kept{Times: map[uint64]time.Time{}}}
	if path == "" {
		return s, nil
	}
	leftErr := statefile.RemoveTemporaries(path)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, leftErr
	}
	var stored kept
	if err == nil {
		stored, err = parseSeen(data)
	}
	if err != nil {
		_, asideErr := statefile.SetAside(path)
		return s, errors.Join(fmt.Errorf("read when epochs were first seen, which counts from now on: %s: %w", path, err), asideErr, leftErr)
	}
	s.kept = stored
	return s, leftErr
}

// parseSeen also reads the times alone, which is all that was in the file at first.
func parseSeen(data []byte) (kept, error) {
	var times map[uint64]time.Time
	if json.Unmarshal(data, &times) == nil && times != nil {
		out := kept{Times: times}
		for number := range times {
			out.Highest = max(out.Highest, number)
		}
		return out, nil
	}
	out := kept{Times: map[uint64]time.Time{}}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields() // it is another file, then
	err := decoder.Decode(&out)
	return out, err
}

// refuse says why an epoch is not taken, nil if it is. One that is known is held to the time when
// it was first seen. highest is Highest from before the listing that the epoch came in.
func (s *seen) refuse(e *Epoch, highest uint64) error {
	if _, known := s.Times[e.Number]; known {
		return nil
	}
	why := ""
	switch {
	case e.Number <= s.Opened:
		why = fmt.Sprintf("this node has used epoch %d already, and does not know this one any more", s.Opened)
	case !kek.Untimed(e.Wrapped):
		return nil
	case s.Bound:
		why = "its times are not bound to its key, and this node has used epochs whose times are"
	case e.Number <= highest:
		why = fmt.Sprintf("its times are not bound to its key, and this node has seen epoch %d already", highest)
	default:
		return nil
	}
	return kek.Replayed(e.Number, why)
}

// listed notes an epoch's number.
func (s *seen) listed(number uint64) {
	if number > s.Highest {
		s.Highest, s.dirty = number, true
	}
}

// opened notes that this node has an epoch's key. Only then is its number proven: the KMS
// authenticates it.
func (s *seen) opened(e *Epoch) {
	bound := s.Bound || kek.BindsTimes(e.Wrapped)
	if e.Number > s.Opened || bound != s.Bound {
		s.Opened, s.Bound, s.dirty = max(s.Opened, e.Number), bound, true
	}
}

// numberAhead is how far above all that this node has opened an epoch's number may be to count. No
// cluster makes so many while a node is away.
const numberAhead = 1 << 20

// farAhead: a number proves nothing until the KMS has opened the epoch, and the highest that there
// can be would end rotation. So such an epoch is tried, and does not count until it is open. A node
// that has opened none yet cannot tell.
func (s *seen) farAhead(number uint64) bool {
	return s.Opened > 0 && number > s.Opened+numberAhead
}

// countHighest counts an epoch that was opened, and no longer one that this shows to be far ahead.
// The caller holds mu.
func (k *Keeper) countHighest(opened uint64) {
	k.seen.listed(opened)
	k.highest = max(k.highest, opened)
	if !k.seen.farAhead(k.highest) {
		return
	}
	k.highest = max(k.seen.Opened, k.opt.SAs.Highest())
	for number := range k.epochs {
		if !k.seen.farAhead(number) {
			k.highest = max(k.highest, number)
		}
	}
	if k.seen.farAhead(k.seen.Highest) {
		k.seen.Highest, k.seen.dirty = k.highest, true
	}
}

// first is when an epoch was first seen: now, if it was not before or the clock has been put back
// since.
func (s *seen) first(number uint64, now time.Time) time.Time {
	first, known := s.Times[number]
	if !known || first.After(now) {
		first = now
		s.Times[number], s.dirty = now.UTC(), true
	}
	return first
}

// keep forgets epochs that are no longer in the store, once they could not be used any more. So a
// file that is away for a moment does no harm, and who takes an epoch away and puts it back gains
// no time; later it is refused.
func (s *seen) keep(list []Epoch, now time.Time, life time.Duration) {
	there := map[uint64]bool{}
	for i := range list {
		there[list[i].Number] = true
	}
	for number, first := range s.Times {
		if !there[number] && now.Sub(first) > life {
			delete(s.Times, number)
			s.dirty = true
		}
	}
}

// changed is the file's new contents, nil if there is nothing to write.
func (s *seen) changed() ([]byte, error) {
	if !s.dirty || s.path == "" {
		return nil, nil
	}
	s.dirty = false
	data, err := json.Marshal(s.kept)
	return append(data, '\n'), err
}

// refuseEpoch tells that an epoch is not taken. The caller holds mu.
func (k *Keeper) refuseEpoch(e *epoch) {
	e.err = e.refused
	k.counters.UnwrapErrors[kek.Outcome(e.refused)]++
	k.opt.Journal.Add(audit.Record{Event: audit.EventSeen, Epoch: e.Number,
		Outcome: kek.Outcome(e.refused), Detail: audit.Line(e.refused)})
	k.log.Error("keys: an epoch is refused", "epoch", e.Number, "err", e.refused)
}

// onlyPast: there are epochs, and none can be used: this node refuses them, or they are over and it
// has used newer ones than all of them. The caller holds mu.
func (k *Keeper) onlyPast() bool {
	for _, e := range k.epochs {
		if e.refused == nil && (k.live(e) || e.Number >= k.seen.Opened) {
			return false
		}
	}
	return len(k.epochs) > 0
}

// saveSeen writes down what was seen for the first time. The file is the main loop's alone.
func (k *Keeper) saveSeen() {
	k.mu.Lock()
	data, err := k.seen.changed()
	k.mu.Unlock()
	if data == nil {
		return
	}
	if err == nil {
		err = statefile.Write(k.opt.SeenFile, data)
	}
	if err != nil {
		err = fmt.Errorf("write when epochs were first seen: %w", err)
		k.mu.Lock()
		k.seen.dirty = true
		k.mu.Unlock()
	}
	k.opt.Problem("first seen", err)
}
