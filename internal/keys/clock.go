package keys

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock is what a Manager knows of time. Everything that it waits for is measured with
// Boot, which never jumps; Wall is only for the times of objects.
type Clock interface {
	Wall() time.Time
	// Boot is the time since some fixed moment. It goes on while the machine sleeps.
	Boot() time.Duration
	After(time.Duration) <-chan time.Time
}

type realClock struct{ start time.Time }

func newRealClock() Clock { return realClock{time.Now()} }

func (realClock) Wall() time.Time { return time.Now().Round(0) }

func (c realClock) Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Since(c.start)
	}
	return time.Duration(ts.Nano())
}

func (realClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// jumpAt is how far the wall clock may drift from Boot between two looks before that is a jump.
const jumpAt = 5 * time.Second

// jumps notices that somebody set the wall clock.
type jumps struct {
	seen   bool
	offset time.Duration
}

// look returns how far the wall clock has jumped since the last look, 0 for not at all.
func (j *jumps) look(c Clock) time.Duration {
	offset := time.Duration(c.Wall().UnixNano()) - c.Boot()
	was, seen := j.offset, j.seen
	j.offset, j.seen = offset, true
	if d := offset - was; seen && d.Abs() >= jumpAt {
		return d
	}
	return 0
}
