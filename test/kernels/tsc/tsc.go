// Package tsc measures this machine's time stamp counter.
package tsc

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// span is how far apart the two readings are that KHz compares.
const span = 200 * time.Millisecond

// KHz is how many thousand times a second the counter counts, to one in ten thousand; 0 on
// processors that have none.
func KHz() uint64 {
	if count() == 0 {
		return 0
	}
	first := read()
	time.Sleep(span)
	second := read()
	return uint64(math.Round(float64(second.count-first.count) * 1e6 / float64(second.time-first.time)))
}

// reading is the counter at a time, in ns, of a clock that nobody sets or slews.
type reading struct {
	time  int64
	count uint64
}

// read is the best of several attempts: one that was interrupted in the middle tells nothing.
func read() (best reading) {
	shortest := int64(math.MaxInt64)
	for range 100 {
		before := now()
		c := count()
		after := now()
		if after-before < shortest {
			shortest, best = after-before, reading{before + (after-before)/2, c}
		}
	}
	return best
}

func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &t); err != nil {
		panic(err) // no Linux is without it
	}
	return t.Nano()
}
