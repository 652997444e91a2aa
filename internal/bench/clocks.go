package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// clocks are CPU-time clocks of threads and processes, see pthread_getcpuclockid(3)
// and clock_getcpuclockid(3).
type clocks []int32

// Bits of a CPU-time clock's id (linux/posix-timers.h): what it counts, and whose.
const clockSched, clockPerThread = 2, 4

func threadClock(tid int) int32  { return int32(^tid<<3 | clockPerThread | clockSched) }
func processClock(pid int) int32 { return int32(^pid<<3 | clockSched) }

// read sums the clocks.
func (c clocks) read() (time.Duration, error) {
	var total time.Duration
	for _, id := range c {
		var ts unix.Timespec
		if err := unix.ClockGettime(id, &ts); err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		total += time.Duration(ts.Nano())
	}
	return total, nil
}

// ksoftirqd finds the kernel thread that runs a CPU's softirqs when they pile up.
func ksoftirqd(cpu int) (int, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	want := fmt.Sprintf("ksoftirqd/%d\n", cpu)
	for _, path := range paths {
		if comm, err := os.ReadFile(path); err == nil && string(comm) == want {
			return strconv.Atoi(filepath.Base(filepath.Dir(path)))
		}
	}
	return 0, fmt.Errorf("find ksoftirqd/%d in /proc: run in the host's PID namespace", cpu)
}
