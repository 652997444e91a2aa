package sealer

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sealer/control"
)

const confinedCall = "WEFT_TEST_CONFINED_CALL"

// calls are tried under the filter, in a process of their own.
var calls = map[string]struct {
	allowed bool
	do      func()
}{
	"read": {true, func() { unix.Read(-1, nil) }},
	"map memory": {true,
		func() { unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON) }},
	"signal itself":   {true, func() { unix.Tgkill(os.Getpid(), unix.Gettid(), 0) }},
	"accept":          {true, func() { unix.Accept4(-1, 0) }},
	"start threads":   {true, threads},
	"collect garbage": {true, garbage},
	"open a file":     {false, func() { unix.Open("/etc/passwd", unix.O_RDONLY, 0) }},
	"make a socket":   {false, func() { unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0) }},
	"connect": {false,
		func() { unix.Connect(-1, &unix.SockaddrUnix{Name: "x"}) }},
	"start a program": {false, func() { syscall.Exec("/bin/true", nil, nil) }},
	"fork": {false,
		func() { syscall.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0) }},
	"kill another":               {false, func() { unix.Kill(1, 0) }},
	"signal a thread of another": {false, func() { unix.Tgkill(1, 1, 0) }},
	"map code": {false,
		func() {
			unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC,
				unix.MAP_PRIVATE|unix.MAP_ANON)
		}},
	"make memory code": {false,
		func() { unix.Mprotect(make([]byte, 4096), unix.PROT_EXEC) }},
	"trace":                 {false, func() { unix.PtraceAttach(1) }},
	"read another's memory": {false, func() { unix.ProcessVMReadv(1, nil, nil, 0) }},
	"be dumpable again":     {false, func() { unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }},
	"set core limit": {false,
		func() { unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) }},
	"unlock memory": {false, func() { unix.Munlockall() }},
	"ioctl":         {false, func() { unix.IoctlGetInt(0, unix.TUNGETIFF) }},
	"TCP's socket options": {false,
		func() { unix.SetsockoptInt(-1, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) }},
	"become another user": {false, func() { syscall.RawSyscall(unix.SYS_SETUID, 0, 0, 0) }},
}

func threads() {
	done := make(chan bool)
	for range 20 {
		go func() {
			unix.Nanosleep(&unix.Timespec{Nsec: 5e6}, nil)
			done <- true
		}()
	}
	for range 20 {
		<-done
	}
}

var sink []byte

func garbage() {
	for range 2000 {
		sink = make([]byte, 1<<17)
	}
}

// withoutLibc is this test's binary without libc, whose threads call what the program's do not.
func withoutLibc(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "confined.test")
	build := exec.Command("go", "test", "-c", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	return path
}

// TestConfinedCall is TestSeccomp's other process.
func TestConfinedCall(t *testing.T) {
	name := os.Getenv(confinedCall)
	if name == "" {
		t.Skip("runs within TestSeccomp")
	}
	runtime.GOMAXPROCS(2) // as harden does
	time.Sleep(time.Microsecond)
	if err := confine(); err != nil {
		t.Fatal(err)
	}
	calls[name].do()
	unix.Write(1, []byte("lives\n"))
	unix.Exit(0)
}

// TestSeccomp: what the filter lets through, and that all else ends the process.
func TestSeccomp(t *testing.T) {
	program := withoutLibc(t)
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program, "-test.run", "^TestConfinedCall$")
			cmd.Env = append(os.Environ(), confinedCall+"="+name, control.Godebug)
			out, err := cmd.CombinedOutput()
			if call.allowed {
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
				return
			}
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGSYS {
				t.Errorf("ended with %v, not SIGSYS: %s", err, out)
			}
		})
	}
}
