// Package sealer is the process weft-sealer: it cuts, seals and opens what comes in bulk, as
// packets that stand for many, behind a tap. Hooks put them there with the numbers to use, and take
// from there what became of them; windows, policy, identities and addresses stay theirs.
package sealer

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/keys/secmem"
	"weft.dev/weft/internal/sealer/control"
)

// process ties the parts together. It is the control socket's handler.
type process struct {
	build  string
	keys   *keyring
	engine *engine
	worker *worker
	tap    int

	begin   sync.Once
	begun   atomic.Bool
	leave   sync.Once
	idle    chan struct{} // closed: the worker has ended, and failed says why
	failed  error
	leaving chan struct{} // closed: end
}

// Run is the whole process, until it is told to end or fails. It returns the exit code.
func Run() int {
	says, err := mute()
	if err == nil {
		err = run()
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(says, err) //nolint:errcheck // the agent may be gone
	return 1
}

// mute takes stderr from Go's runtime: when that crashes it prints registers and arguments,
// whatever GOTRACEBACK says. What this program has to say goes to the file returned.
func mute() (*os.File, error) {
	fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, control.SocketFD+1)
	if err != nil {
		return os.Stderr, fmt.Errorf("stderr: %w", err)
	}
	null, err := unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Dup3(null, 2, 0)
	}
	if err != nil {
		return os.Stderr, fmt.Errorf("mute stderr: %w", err)
	}
	return os.NewFile(uintptr(fd), "stderr"), unix.Close(null)
}

func run() error {
	if err := harden(); err != nil {
		return err
	}
	p, err := newProcess(control.TapFD)
	if err != nil {
		return err
	}
	s := &server{fd: control.SocketFD, handler: p}
	if err := s.listen(); err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	time.Sleep(time.Microsecond) // makes the runtime set up its poller, before the filter
	if err := confine(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.serve() }()
	return p.wait(signals, ended)
}

// wait ends the process in order, whatever ends it.
func (p *process) wait(signals <-chan os.Signal, ended <-chan error) error {
	var err error
	select {
	case <-signals:
	case <-p.leaving:
	case err = <-ended:
	}
	p.Quit()
	p.keys.wipe()
	return errors.Join(err, p.failed)
}

func newProcess(fd int) (*process, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("tap: %w", err)
	}
	p := &process{
		build: control.Build(), keys: newKeyring(), tap: fd,
		idle: make(chan struct{}), leaving: make(chan struct{}),
	}
	var err error
	if p.engine, err = newEngine(tap{fd}, p.keys); err != nil {
		return nil, err
	}
	p.worker, err = newWorker(tap{fd}, p.engine)
	return p, err
}

// harden is what needs no filter yet.
func harden() error {
	// Else it is named for the descriptor that it was started by.
	os.WriteFile("/proc/self/comm", []byte(control.Program), 0) //nolint:errcheck // a name, no more
	debug.SetTraceback("none")
	// One thread each for the worker and the socket. Set, so that the runtime does not look for
	// changes of the CPU limit, which opens files.
	runtime.GOMAXPROCS(max(2, min(runtime.NumCPU(), 3)))
	if err := secmem.ProtectProcess(); err != nil {
		return err
	}
	// All of it where the limit allows: Go reserves far more addresses than it uses, and all count.
	// Else what has keys and packets in it, which pages locks.
	err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
	if err != nil && err != unix.ENOMEM && err != unix.EPERM {
		return fmt.Errorf("lock memory: %w", err)
	}
	return nil
}

// Hello implements control.Handler.
func (p *process) Hello() control.Hello {
	return control.Hello{
		Protocol: control.Protocol, PID: os.Getpid(), Build: p.build, Begun: p.begun.Load(),
	}
}

// Configure implements control.Handler.
func (p *process) Configure(c control.Config) error {
	if c.ESPPort == 0 {
		return errors.New("the ESP port is 0")
	}
	p.engine.port.Store(uint32(c.ESPPort))
	return nil
}

// Install implements control.Handler.
func (p *process) Install(keys []control.Key) error {
	defer p.worker.poke() // has it see that the tap is empty
	return p.keys.install(keys)
}

// Remove implements control.Handler.
func (p *process) Remove(keys []control.Held) {
	defer p.worker.poke()
	p.keys.remove(keys)
}

// Each implements control.Handler.
func (p *process) Each(f func(*control.Key) error) error { return p.keys.each(f) }

// Tap implements control.Handler.
func (p *process) Tap() int { return p.tap }

// Stats implements control.Handler.
func (p *process) Stats() control.Stats { return p.engine.stats.read() }

// Begin implements control.Handler.
func (p *process) Begin() error {
	if p.engine.port.Load() == 0 {
		return errors.New("begin before configure")
	}
	p.begin.Do(func() {
		p.begun.Store(true)
		go func() {
			if p.failed = fault(p.worker.run); p.failed != nil {
				p.Leave()
			}
			close(p.idle)
		}()
	})
	return nil
}

// Quit implements control.Handler.
func (p *process) Quit() {
	p.worker.end()
	p.begin.Do(func() { close(p.idle) })
	<-p.idle
}

// Leave implements control.Handler.
func (p *process) Leave() { p.leave.Do(func() { close(p.leaving) }) }

// fault makes a panic an error that says where, and nothing of what was in memory.
func fault(f func() error) (err error) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		var where []string
		at := make([]uintptr, 16)
		frames := runtime.CallersFrames(at[:runtime.Callers(2, at)])
		for more := true; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			where = append(where, fmt.Sprintf("%s:%d", frame.Function, frame.Line))
		}
		err = fmt.Errorf("fault: %T in %s", r, strings.Join(where, " < "))
		if e, ok := r.(runtime.Error); ok {
			err = fmt.Errorf("%w: %w", e, err)
		}
	}()
	return f()
}
