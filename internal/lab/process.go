package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"weft.dev/weft/internal/netns"
)

// process names a process beyond doubt: a pid alone may have been given to another.
type process struct {
	PID int `json:"pid"`
	// Start is the process's start time in clock ticks since boot, /proc/PID/stat field 22.
	Start uint64 `json:"start"`
}

// pollEvery is how often processes and sockets are looked at while waited for.
const pollEvery = 20 * time.Millisecond

// identify reads a running process's start time.
func identify(pid int) (process, error) {
	start, state, err := procStat(pid)
	if err != nil {
		return process{}, err
	}
	// The first thread of a killed process may be gone while others still hold its files.
	if tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); state == 'Z' && err == nil &&
		len(tasks) > 1 {
		return process{PID: pid, Start: start}, nil
	}
	if state == 'Z' || state == 'X' {
		return process{}, fmt.Errorf("process %d has ended", pid)
	}
	return process{PID: pid, Start: start}, nil
}

// procStat reads start time and state. The command name before them may hold anything,
// so the fields are counted from its closing bracket.
func procStat(pid int) (start uint64, state byte, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read process state: %w", err)
	}
	text := string(data)
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) < 20 {
		return 0, 0, fmt.Errorf("read process state of %d: too few fields", pid)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

// alive says whether this very process runs. One that ended but was not reaped does not.
func (p process) alive() bool {
	if p.PID <= 0 {
		return false
	}
	now, err := identify(p.PID)
	return err == nil && now.Start == p.Start
}

// signal sends to this very process: the pidfd is opened first, then the start time
// compared, so the pid cannot change hands in between. Gone is not an error.
func (p process) signal(sig syscall.Signal) error {
	if p.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if !p.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// wait returns when the process is gone.
func (p process) wait(ctx context.Context) error {
	for p.alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d still runs: %w", p.PID, context.Cause(ctx))
		case <-time.After(pollEvery):
		}
	}
	return nil
}

// end stops a process: politely, then after the grace period by force.
func (p process) end(ctx context.Context, grace time.Duration) error {
	if err := p.signal(unix.SIGTERM); err != nil {
		return err
	}
	polite, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if p.wait(polite) == nil {
		return nil
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	if err := p.wait(ctx); err != nil {
		return err
	}
	return fmt.Errorf("process %d did not end within %s of SIGTERM and was killed", p.PID, grace)
}

// processesIn finds the processes that live wholly inside the named network namespaces:
// agents whose pid was not recorded before a crash, commands left behind by Exec. Our own
// threads visit namespaces too, hence only processes with every thread inside count.
func processesIn(names []string) []process {
	inodes := map[uint64]bool{}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Stat(netns.Path(name), &st) == nil {
			inodes[st.Ino] = true
		}
	}
	var host unix.Stat_t
	if unix.Stat("/proc/1/ns/net", &host) == nil {
		delete(inodes, host.Ino)
	}
	var out []process
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() || len(inodes) == 0 || !allThreadsIn(dir, inodes) {
			continue
		}
		if p, err := identify(pid); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func allThreadsIn(proc string, inodes map[uint64]bool) bool {
	threads, _ := filepath.Glob(filepath.Join(proc, "task", "[0-9]*", "ns", "net"))
	for _, t := range threads {
		var st unix.Stat_t
		if unix.Stat(t, &st) != nil || !inodes[st.Ino] {
			return false
		}
	}
	return len(threads) > 0
}
