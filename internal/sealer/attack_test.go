package sealer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sealer/control"
)

// asUser runs a shell command as a user.
func asUser(uid uint32, command string) (string, error) {
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestMemoryUnreadable: neither another user nor the process's own can look into it.
func TestMemoryUnreadable(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	for _, uid := range []uint32{65534, control.UID} {
		for _, file := range []string{"mem", "maps", "environ", "fd/3"} {
			// The shell says so even where nothing would be read.
			out, err := asUser(uid,
				fmt.Sprintf("exec 9< /proc/%d/%s && echo opened", s.PID(), file))
			if err == nil || strings.Contains(out, "opened") ||
				!strings.Contains(out, "ermission denied") {
				t.Errorf("uid %d opens %s: %q %v", uid, file, out, err)
			}
		}
	}
	// As the same user, a process that has not protected itself can be read: the check would
	// notice.
	out, err := asUser(65534, "exec 9< /proc/$$/mem && echo opened")
	if err != nil || !strings.Contains(out, "opened") {
		t.Errorf("a process's own memory: %q %v", out, err)
	}
}

// TestKilled: it is gone at once, without a core, and its clients hear of it.
func TestKilled(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	other, err := control.Dial(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Kill(s.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	<-other.Done()
	var exit *exec.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).CoreDump() {
		t.Errorf("ended with %v", err)
	}
	if _, err := other.Stats(t.Context()); !errors.Is(err, control.ErrClosed) {
		t.Errorf("stats of a dead process: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := control.Dial(ctx, s.path); err == nil {
		t.Error("dialled a dead process")
	}
	next := s.start(t, s.path, s.tap)
	held, err := next.List(t.Context())
	if err != nil || len(held) != 0 {
		t.Errorf("a new process holds %v, %v", held, err)
	}
}

// TestCrashLeavesNothing: a fatal signal makes no core and says nothing of memory.
func TestCrashLeavesNothing(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	if err := unix.Kill(s.PID(),
		unix.SIGQUIT); err != nil { // at which Go prints all stacks and registers
		t.Fatal(err)
	}
	<-s.Done()
	var exit *exec.ExitError
	if err := s.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).CoreDump() {
		t.Errorf("ended with %v", err)
	}
	if said := s.log.String(); said != "" {
		t.Errorf("it said: %s", said)
	}
}

// TestTerminated: SIGTERM ends it in order.
func TestTerminated(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	if err := unix.Kill(s.PID(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err, s.log)
	}
}

// TestOnlyRootConnects: who is not root gets no answer, not even by a connection that root has
// made.
func TestOnlyRootConnects(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	// The path is opened to all, as if somebody had made that mistake.
	if out, err := exec.Command("chmod", "-R", "a+rwx", s.path).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	for dir := s.path; dir != "/tmp" && dir != "/"; {
		dir = dir[:strings.LastIndex(dir, "/")]
		if out, err := exec.Command("chmod", "a+x", dir).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
	}
	hello := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	for _, c := range []struct {
		name     string
		connects uint32
		sends    uint32
		answered bool
	}{
		{"root", 0, 0, true},
		{"another user", 65534, 65534, false},
		{"the process's own user", control.UID, control.UID, false},
		{"root's connection, another user's message", 0, 65534, false},
		{"another user's connection, root's message", 65534, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			as(t, c.connects,
				func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: s.path}) })
			sent := as(t, c.sends,
				func() error { return unix.Sendto(fd, hello, unix.MSG_NOSIGNAL, nil) })
			answer := make([]byte, 1000)
			n, err := unix.Read(fd, answer)
			if answered := n > 0; answered != c.answered {
				t.Errorf("answered %v (%d bytes, sent: %v, read: %v)", answered, n, sent, err)
			}
		})
	}
	if _, err := s.Hello(t.Context()); err != nil {
		t.Error("root is not answered any more:", err)
	}
}

// as runs f in a thread of a user, which ends with it.
func as(t *testing.T, uid uint32, f func() error) error {
	t.Helper()
	result := make(chan error)
	go func() {
		// The thread is not given back: the goroutine stays locked to it.
		lockThread()
		if uid != 0 {
			if _, _, errno := syscall.RawSyscall(unix.SYS_SETUID, uintptr(uid), 0, 0); errno != 0 {
				result <- errno
				return
			}
		}
		result <- f()
	}()
	return <-result
}

// TestBadMessages: what is no request ends the connection and nothing else.
func TestBadMessages(t *testing.T) {
	s := start(t)
	s.ready(t, testSA)
	key := make([]byte, 8+49)
	copy(key, []byte{3, 0, 0, 0, 0, 0, 0, 1, 2}) // a direction that is none
	for name, message := range map[string][]byte{
		"short":                  {1, 0, 0},
		"unknown operation":      {99, 0, 0, 0, 0, 0, 0, 0},
		"no operation":           {0, 0, 0, 0, 0, 0, 0, 0},
		"an answer":              {1, 1, 0, 0, 0, 0, 0, 0},
		"more to come":           {1, 0, 1, 0, 0, 0, 0, 0},
		"records missing":        {3, 0, 0, 0, 0, 0, 0, 1},
		"count of 4 billion":     {3, 0, 0, 0, 255, 255, 255, 255},
		"records too many":       {1, 0, 0, 0, 0, 0, 0, 0, 1},
		"direction that is none": key,
		"configured twice":       {2, 0, 0, 0, 0, 0, 0, 2, 1, 1, 1, 1},
		"too long":               make([]byte, 20000),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unixpacket", s.path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(5 * time.Second))
			conn.Write(message)
			if n, err := conn.Read(make([]byte, 100)); n != 0 || err == nil ||
				errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
	}
	if held, err := s.List(t.Context()); err != nil || len(held) != 2 {
		t.Error(held, err)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
