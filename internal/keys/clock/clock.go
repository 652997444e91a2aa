// Package clock is the time that keys live by: one that never jumps to wait with, the wall
// clock for the times of objects, and what many nodes do to not act in the same moment.
package clock

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is what the owners of keys know of time. Everything that they wait for is measured
// with Boot, which never jumps; Wall is only for the times of objects.
type Clock interface {
	Wall() time.Time
	// Boot is the time since some fixed moment. It goes on while the machine sleeps.
	Boot() time.Duration
	After(time.Duration) <-chan time.Time
}

type system struct{ start time.Time }

// New is the machine's clock.
func New() Clock { return system{time.Now()} }

func (system) Wall() time.Time { return time.Now().Round(0) }

func (c system) Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Since(c.start)
	}
	return time.Duration(ts.Nano())
}

func (system) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Wall is a moment of Clock.Boot on the wall clock.
func Wall(c Clock, at time.Duration) time.Time {
	return c.Wall().Add(at - c.Boot()).Truncate(time.Millisecond)
}

// Sleep waits, and says whether ctx still lives.
func Sleep(ctx context.Context, c Clock, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c.After(d):
		return true
	}
}

// Backoff is how long to wait after a number of failures, with jitter.
func Backoff(failures int, least, most time.Duration) time.Duration {
	d := least
	for range min(failures-1, 20) {
		if d = min(2*d, most); d == most {
			break
		}
	}
	return d/2 + rand.N(d/2+1)
}

// Spread is a random part of a time, 0 of none.
func Spread(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// jumpAt is how far the wall clock may drift from Boot between two looks before that is a jump.
const jumpAt = 5 * time.Second

// Jumps notices that somebody set the wall clock. The zero value is ready.
type Jumps struct {
	seen   bool
	offset time.Duration
}

// Look returns how far the wall clock has jumped since the last look, 0 for not at all.
func (j *Jumps) Look(c Clock) time.Duration {
	offset := time.Duration(c.Wall().UnixNano()) - c.Boot()
	was, seen := j.offset, j.seen
	j.offset, j.seen = offset, true
	if d := offset - was; seen && d.Abs() >= jumpAt {
		return d
	}
	return 0
}
