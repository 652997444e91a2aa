package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// clockTick is the unit of /proc/stat; Linux reports USER_HZ, 100 on every architecture Go runs on.
const clockTick = 10 * time.Millisecond

// BusyCPU returns the CPU time that all of the machine has spent so far on
// anything but idling, waiting for I/O and niced work: spinners are niced.
func BusyCPU() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return parseBusy(string(stat))
}

// parseBusy sums user, system, irq, softirq and steal of /proc/stat's first line.
func parseBusy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("parse /proc/stat: unexpected first line %q", line)
	}
	var ticks uint64
	for _, i := range []int{1, 3, 6, 7, 8} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse /proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// KeepAwake keeps every CPU out of its idle state until stop is called or this process ends.
// BusyCPU does not count what that takes.
func KeepAwake(ctx context.Context) (stop func(), err error) {
	spin, err := startSpinners(ctx)
	if err != nil {
		return nil, err
	}
	return spin.stop, nil
}

// schedIdle is SCHED_IDLE of sched(7).
const schedIdle = 5

// spinners keep every CPU out of its idle state, so that request/response measures
// the datapath and not the (virtual) machine's wake-up from halt.
type spinners struct {
	cmds []*exec.Cmd
	done chan struct{}
}

// startSpinners starts one SCHED_IDLE busy loop per CPU, as processes of their own
// because a busy goroutine would hold up the runtime. They die with this process.
func startSpinners(ctx context.Context) (*spinners, error) {
	s := &spinners{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal follows the thread that forked: keep it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var errs []error
		for cpu := range runtime.NumCPU() {
			errs = append(errs, s.spin(ctx, cpu))
		}
		started <- errors.Join(errs...)
		<-s.done
	}()
	if err := <-started; err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// spin starts one busy loop on one CPU.
func (s *spinners) spin(ctx context.Context, cpu int) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "while :; do :; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start spinner: %w", err)
	}
	s.cmds = append(s.cmds, cmd)
	pid := cmd.Process.Pid
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: schedIdle, Nice: 19}
	if err := unix.SchedSetAttr(pid, attr, 0); err != nil {
		return fmt.Errorf("make spinner idle priority: %w", err)
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		return fmt.Errorf("pin spinner to CPU %d: %w", cpu, err)
	}
	return nil
}

// stop ends the spinners.
func (s *spinners) stop() {
	for _, cmd := range s.cmds {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	close(s.done)
}
