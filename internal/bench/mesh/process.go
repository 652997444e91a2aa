package mesh

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"weft.dev/weft/internal/netns"
)

// maxOutput bounds what is kept of a program's output, in bytes: the end of it.
const maxOutput = 64 << 10

// output keeps what a program says.
type output struct {
	mu   sync.Mutex
	text []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	if over := len(o.text) - maxOutput; over > 0 {
		o.text = append([]byte(nil), o.text[over:]...)
	}
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// process is a program that runs inside a pod. It ends with this process at the latest.
type process struct {
	cmd  *exec.Cmd
	said output
	done chan struct{}
	err  error // how it ended, once done is closed
}

// start starts a program inside a network namespace.
func start(ns, path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		// The parent-death signal follows the thread that forked: it stays in here until the end.
		err := netns.Do(ns, func() error {
			if err := p.cmd.Start(); err != nil {
				return err
			}
			started <- nil
			p.err = p.cmd.Wait()
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return p, nil
}

// stop ends the program; safe to call twice.
func (p *process) stop() {
	if !p.ended() {
		_ = p.cmd.Process.Kill()
	}
	<-p.done
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// died is the error of a program that has ended although nobody stopped it.
func (p *process) died() error {
	if !p.ended() {
		return nil
	}
	return fmt.Errorf("%s has ended, %v: %s", p.cmd.Path, p.cmd.ProcessState,
		strings.TrimSpace(p.said.String()))
}

// says waits until the program has said something, for as long as limit.
func (p *process) says(ctx context.Context, text string, limit time.Duration) error {
	return poll(ctx, limit, p.died, func() error {
		if strings.Contains(p.said.String(), text) {
			return nil
		}
		return fmt.Errorf("%s has not said %q for %s", p.cmd.Path, text, limit)
	})
}

// wait waits until the program has ended by itself, for as long as limit, and returns all that it
// said.
func (p *process) wait(ctx context.Context, limit time.Duration) (string, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-timer.C:
		return "", fmt.Errorf("%s still runs after %s", p.cmd.Path, limit)
	case <-p.done:
	}
	if p.err != nil {
		return "", p.died()
	}
	return p.said.String(), nil
}

// pollEvery is how often something awaited is looked at.
const pollEvery = 5 * time.Millisecond

// poll calls try until it returns nil, limit is over, alive returns an error or ctx ends.
func poll(ctx context.Context, limit time.Duration, alive, try func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil {
			return nil
		}
		if dead := alive(); dead != nil {
			return dead
		}
		if time.Now().After(deadline) {
			return err
		}
		if e := sleep(ctx, pollEvery); e != nil {
			return errors.Join(e, err)
		}
	}
}
