package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What the first process of a node is asked, a line of JSON each, and answers in the same way.
type request struct {
	// Do is start, signal, await (its end) or run.
	Do string
	// Name is the service's, Args its program and what that gets, Log the file of its output.
	Name   string
	Args   []string
	Log    string
	Signal syscall.Signal
}

type answer struct {
	// Error is why it could not be done, Output what a program has said that was run.
	Error, Output string
}

// describe is what the first process of a node is told at its start.
type describe struct {
	// Name is the host's, Dir what is its own on disk.
	Name, Dir string
}

// beNode is the first process of a node, in namespaces of its own for mounts, processes, network,
// host name and IPC. It ends when its input does, and with it all that is in the node.
func beNode() error {
	// A namespace of control groups is the thread's that made it, and of the processes that this
	// thread starts.
	runtime.LockOSThread()
	in := json.NewDecoder(os.Stdin)
	var node describe
	if err := in.Decode(&node); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := furnish(node); err != nil {
		return out.Encode(answer{Error: err.Error()})
	}
	if err := out.Encode(answer{}); err != nil {
		return err
	}
	s := &services{running: map[string]int{}, ended: map[int]unix.WaitStatus{}}
	s.changed = sync.NewCond(&s.mu)
	go s.reap()
	for {
		var r request
		if err := in.Decode(&r); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := out.Encode(s.do(r)); err != nil {
			return err
		}
	}
}

// furnish makes the file systems: its own /run, /var/lib, /var/log and /opt, an /etc over the
// machine's, and kernel file systems as its namespaces see them.
func furnish(node describe) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if err := joinGroups(all, os.Getenv(prefix)+node.Name); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare control groups: %w", err)
	}
	if err := unix.Sethostname([]byte(node.Name)); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := mountOwn(node.Dir, all); err != nil {
		return err
	}
	if err := hideSysctls(); err != nil {
		return err
	}
	if err := newBoot(); err != nil {
		return err
	}
	// A runtime's mounts of network namespaces and volumes are to reach containers that share them.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// mountOwn mounts what is the node's own.
func mountOwn(dir string, all []hierarchy) error {
	etc := fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", filepath.Join(dir, "etc"),
		filepath.Join(dir, "etc-work"))
	for _, m := range [][4]string{
		{"proc", "/proc", "proc", ""}, {"sysfs", "/sys", "sysfs", ""},
		{"bpf", "/sys/fs/bpf", "bpf", "mode=700"}, {"tmpfs", "/run", "tmpfs", "mode=755"},
		{"overlay", "/etc", "overlay", etc},
	} {
		if err := mount(m[0], m[1], m[2], m[3]); err != nil {
			return err
		}
	}
	if err := mountGroups(all); err != nil {
		return err
	}
	for name, at := range map[string]string{"lib": "/var/lib", "log": "/var/log", "opt": "/opt"} {
		if err := bind(filepath.Join(dir, name), at); err != nil {
			return err
		}
	}
	return nil
}

// hideSysctls gives the kubelet files in place of sysctls that it writes and no namespace has: the
// machine keeps its own values.
func hideSysctls() error {
	if err := os.MkdirAll("/run/sysctl", 0o755); err != nil {
		return err
	}
	for name, value := range map[string]string{"vm/overcommit_memory": "1", "vm/panic_on_oom": "0",
		"kernel/panic": "10", "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000",
		"kernel/keys/root_maxbytes": "25000000"} {
		file := filepath.Join("/run/sysctl", strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := bind(file, filepath.Join("/proc/sys", name)); err != nil {
			return err
		}
	}
	return nil
}

// newBoot gives the node a boot of its own: what is on its disk may be of an earlier one.
func newBoot() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err == nil {
		err = os.WriteFile("/run/boot_id", id, 0o444)
	}
	if err != nil {
		return err
	}
	return bind("/run/boot_id", "/proc/sys/kernel/random/boot_id")
}

// services are the programs that a node's first process has started. It also reaps what others
// leave to it.
type services struct {
	mu      sync.Mutex
	changed *sync.Cond
	running map[string]int // pid by name
	ended   map[int]unix.WaitStatus
}

func (s *services) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err != nil { // no child, or a signal
			time.Sleep(20 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		s.ended[pid] = status
		s.changed.Broadcast()
		s.mu.Unlock()
	}
}

func (s *services) do(r request) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Do {
	case "start":
		_, err := s.start(r)
		return answered("", err)
	case "signal":
		return answered("", syscall.Kill(s.running[r.Name], r.Signal))
	case "await":
		s.await(r.Name)
		return answer{}
	case "run":
		return answered(s.run(r))
	}
	return answer{Error: "not known: " + r.Do}
}

func answered(output string, err error) answer {
	if err != nil {
		return answer{Output: output, Error: err.Error()}
	}
	return answer{Output: output}
}

// start starts a service from the thread that asks, in whose control groups it begins.
func (s *services) start(r request) (pid int, err error) {
	if s.runs(r.Name) {
		return 0, fmt.Errorf("%s runs already", r.Name)
	}
	log, err := os.OpenFile(r.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	program, err := exec.LookPath(r.Args[0])
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err = syscall.ForkExec(program, r.Args, &syscall.ProcAttr{Dir: "/", Env: os.Environ(),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err == nil {
		s.running[r.Name] = pid
		delete(s.ended, pid)
	}
	return pid, err
}

func (s *services) runs(name string) bool {
	pid, known := s.running[name]
	_, ended := s.ended[pid]
	return known && !ended
}

func (s *services) await(name string) {
	for s.runs(name) {
		s.changed.Wait()
	}
}

// run is start and await, with what the program has said.
func (s *services) run(r request) (string, error) {
	r.Name, r.Log = "run", filepath.Join("/run", "run.log")
	os.Remove(r.Log)
	pid, err := s.start(r)
	if err != nil {
		return "", err
	}
	s.await(r.Name)
	said, err := os.ReadFile(r.Log)
	if status := s.ended[pid]; err == nil && status != 0 {
		err = fmt.Errorf("%s: status %d: %s", strings.Join(r.Args, " "), status.ExitStatus(), said)
	}
	return string(said), err
}
