package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sibling"
)

// How long agents may take for things: much longer than they do on a machine with time.
const (
	defaultReadyTimeout = 2 * time.Minute
	answerTimeout       = 10 * time.Second
	stopGrace           = time.Minute
	killTimeout         = 90 * time.Second
)

// ErrBare is returned when an agent is asked of a bare node.
var ErrBare = errors.New("is a bare node (agent: false), it has no agent")

// PID is the running agent's process id, 0 if none runs.
func (n *Node) PID() int {
	if p := n.agent(); p.alive() {
		return p.PID
	}
	return 0
}

// agent is the agent last started, the zero process if none was.
func (n *Node) agent() process {
	st, err := n.lab.st.read()
	if err != nil {
		return process{}
	}
	return st.Agents[n.Name]
}

// StartAgent starts the node's agent and waits until it is ready.
func (n *Node) StartAgent(ctx context.Context) error {
	if n.Bare {
		return fmt.Errorf("node %s %w", n.Name, ErrBare)
	}
	if pid := n.PID(); pid != 0 {
		return fmt.Errorf("the agent of node %s runs already, pid %d", n.Name, pid)
	}
	p, err := n.launch()
	if err != nil {
		return err
	}
	n.lab.log().Info("agent started", "node", n.Name, "pid", p.PID)
	return n.WaitReady(ctx)
}

// launch starts the agent inside the node's network namespace, in a session of its
// own and with its output in a file, so that it outlives us.
func (n *Node) launch() (process, error) {
	st, err := n.lab.st.read()
	if err != nil {
		return process{}, err
	}
	logFile, err := os.OpenFile(n.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return process{}, fmt.Errorf("open agent log: %w", err)
	}
	defer logFile.Close()
	cmd := exec.Command(st.Binary, "agent", "--config", n.ConfigFile)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var p process
	// Recorded under the same lock: nobody sees a running agent without its record.
	err = n.lab.st.update(func(st *state) error {
		if st.Agents[n.Name].alive() {
			return fmt.Errorf("the agent of node %s runs already, pid %d", n.Name,
				st.Agents[n.Name].PID)
		}
		if err := n.Do(cmd.Start); err != nil {
			return fmt.Errorf("start agent of node %s: %w", n.Name, err)
		}
		go func() { _ = cmd.Wait() }() // reaps it when it ends before us
		start, _, err := procStat(cmd.Process.Pid)
		if err != nil {
			return fmt.Errorf("start agent of node %s: %w%s", n.Name, err, n.logTail())
		}
		p = process{PID: cmd.Process.Pid, Start: start}
		st.Agents[n.Name] = p
		return nil
	})
	return p, err
}

// WaitReady waits until the agent says that it is ready. It fails at once when the
// agent ends, and quotes its last words.
func (n *Node) WaitReady(ctx context.Context) error {
	if n.Bare {
		return fmt.Errorf("node %s %w", n.Name, ErrBare)
	}
	timeout := n.lab.opts.ReadyTimeout
	if timeout == 0 {
		timeout = defaultReadyTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	p := n.agent()
	var why error // the last answer, not that we stopped asking
	for {
		err := n.ready(ctx)
		if err == nil {
			return nil
		}
		if why == nil || ctx.Err() == nil {
			why = err
		}
		if !p.alive() {
			return fmt.Errorf("the agent of node %s ended before it was ready%s", n.Name,
				n.logTail())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent of node %s is not ready (%w): %w%s", n.Name,
				context.Cause(ctx), why, n.logTail())
		case <-time.After(pollEvery):
		}
	}
}

// ready asks the agent once.
func (n *Node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	resp, err := n.get(ctx, "/v1/readyz")
	if err != nil {
		return fmt.Errorf("ask for readiness: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return fmt.Errorf("readiness: %s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

// get asks the agent's admin API.
func (n *Node) get(ctx context.Context, path string) (*http.Response, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.Socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://unix"+path, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}

// logTail is the end of the agent's log, for errors.
func (n *Node) logTail() string {
	const lines, most = 15, 8192
	data, err := os.ReadFile(n.LogFile)
	if err != nil || len(strings.TrimSpace(string(data))) == 0 {
		return "; it wrote no log (" + n.LogFile + ")"
	}
	if len(data) > most {
		data = data[len(data)-most:]
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return "; the end of " + n.LogFile + ":\n  " + strings.Join(all, "\n  ")
}

// StopAgent ends the agent with SIGTERM and waits until it is gone. An agent that
// does not end within a minute is killed, which is an error.
func (n *Node) StopAgent(ctx context.Context) error {
	if n.Bare {
		return fmt.Errorf("node %s %w", n.Name, ErrBare)
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := n.agent().end(ctx, stopGrace); err != nil {
		return fmt.Errorf("stop agent of node %s: %w", n.Name, err)
	}
	n.lab.log().Info("agent stopped", "node", n.Name)
	return nil
}

// KillAgent ends the agent with SIGKILL and waits until it is gone.
func (n *Node) KillAgent(ctx context.Context) error {
	if n.Bare {
		return fmt.Errorf("node %s %w", n.Name, ErrBare)
	}
	p := n.agent()
	if !p.alive() {
		return fmt.Errorf("the agent of node %s does not run", n.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := p.signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill agent of node %s: %w", n.Name, err)
	}
	if err := p.wait(ctx); err != nil {
		return fmt.Errorf("kill agent of node %s: %w", n.Name, err)
	}
	n.lab.log().Info("agent killed", "node", n.Name, "pid", p.PID)
	return nil
}

// RestartAgent stops and starts the agent.
func (n *Node) RestartAgent(ctx context.Context) error {
	if err := n.StopAgent(ctx); err != nil {
		return err
	}
	return n.StartAgent(ctx)
}

// SetBinary makes agents and CNI calls that start from now on use another weft
// binary: an upgrade.
func (l *Lab) SetBinary(path string) error {
	path, err := checkBinary(path)
	if err != nil {
		return err
	}
	return l.st.update(func(st *state) error {
		st.Binary = path
		return linkPlugin(st)
	})
}

// checkBinary resolves the weft binary, which is found where none is named.
func checkBinary(path string) (_ string, err error) {
	if path == "" {
		if path, err = sibling.Find("weft"); err != nil {
			return "", err
		}
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", fmt.Errorf("weft binary: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("weft binary: %w", err)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("weft binary %s is not an executable file: build it with `make build`", path)
	}
	return path, nil
}

// linkPlugin makes the CNI plugin: the same binary under the plugin's name.
func linkPlugin(st *state) error {
	dir := binDir(st.spec.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create plugin directory: %w", err)
	}
	tmp := filepath.Join(dir, "."+cniPlugin)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("link CNI plugin: %w", err)
	}
	if err := os.Symlink(st.Binary, tmp); err != nil {
		return fmt.Errorf("link CNI plugin: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, cniPlugin)); err != nil {
		return fmt.Errorf("link CNI plugin: %w", err)
	}
	return nil
}
