package sealer

import (
	"fmt"
	"os"
	"runtime"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// allowed is what the process and Go's runtime call once they are set up. Nothing in it opens a
// file or a socket, starts a program, or reaches another process.
var allowed = []string{
	// the tap and the control socket
	"read", "write", "writev", "poll", "ppoll", "recvmsg", "sendmsg", "accept4", "close",
	// memory, threads, timers and signals of the runtime
	"munmap", "madvise", "mlock", "futex", "sched_yield", "sched_getaffinity", "gettid", "getpid",
	"nanosleep", "clock_nanosleep", "clock_gettime", "restart_syscall",
	"epoll_ctl", "epoll_pwait", "epoll_pwait2", "getrandom",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "exit", "exit_group",
}

const (
	prSetVMA = 0x53564d41 // PR_SET_VMA: the runtime names its memory
	// What Go makes threads with; without CLONE_THREAD it would be a process.
	cloneThread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND |
		unix.CLONE_SYSVSEM | unix.CLONE_THREAD
)

// conditional are the calls that are allowed with some arguments only.
func conditional() []seccomp.NameWithConditions {
	type call = seccomp.NameWithConditions
	with := func(name string, arg uint32, op seccomp.Operation, value uint64) call {
		return call{Name: name, Conditions: seccomp.ArgumentConditions{
			{Argument: arg, Operation: op, Value: value},
		}}
	}
	return []call{
		with("mmap", 2, seccomp.BitsNotSet, unix.PROT_EXEC),
		with("clone", 0, seccomp.Equal, cloneThread),
		with("clone", 0, seccomp.Equal, cloneThread|unix.CLONE_SETTLS), // on x86
		with("prctl", 0, seccomp.Equal, prSetVMA),
		with("tgkill", 0, seccomp.Equal, uint64(os.Getpid())), // to preempt its threads
		with("getsockopt", 1, seccomp.Equal, unix.SOL_SOCKET),
		with("setsockopt", 1, seccomp.Equal, unix.SOL_SOCKET),
	}
}

// confine puts all threads under the filter, for good. Any other call ends the process.
func confine() error {
	info, err := arch.GetInfo("")
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	var names []string
	for _, name := range allowed {
		if _, known := info.SyscallNames[name]; known { // arm64 has ppoll alone
			names = append(names, name)
		}
	}
	// The privileges that the filter needs to be given up are this thread's, and go to all with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionKillProcess,
			Syscalls: []seccomp.SyscallGroup{{
				Names: names, NamesWithCondtions: conditional(), Action: seccomp.ActionAllow,
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}
