package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/netns"
)

// How long the steps of Down may take, each.
const (
	delTimeout     = 30 * time.Second
	cleanupTimeout = time.Minute
	leftGrace      = 2 * time.Second
)

// Down removes the lab, also a half-built one or one whose parts have crashed: it goes
// through every step whatever fails, checks at the end that nothing is left, and
// returns all that went wrong on the way. Commands that still run in the lab's
// namespaces are ended.
func (l *Lab) Down(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("removing a lab needs root: run it with sudo")
	}
	if _, err := l.st.read(); errors.Is(err, labdir.ErrNoLab) {
		return err
	}
	busy, err := l.st.claim()
	if err != nil {
		return err
	}
	defer busy.Close()
	return l.takeDown(ctx)
}

// runThenDown is Run after Up.
func (l *Lab) runThenDown(ctx context.Context, fn func(*Lab) error) (err error) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
		defer cancel()
		err = errors.Join(err, l.Down(ctx))
	}()
	return fn(l)
}

// takeDown does the work of Down; the caller holds the claim.
func (l *Lab) takeDown(ctx context.Context) error {
	err := l.takeDownKeeping(ctx)
	if st, readErr := l.st.read(); readErr == nil && len(leftovers(st.spec)) > 0 {
		return err // the record stays, so that Down can be tried again
	}
	l.removeDir()
	removeEmptyBases()
	return err
}

// takeDownKeeping removes everything but the lab's directory.
func (l *Lab) takeDownKeeping(ctx context.Context) error {
	var st *state
	err := l.st.update(func(s *state) error { s.Phase = PhaseGoingDown; st = s; return nil })
	if err != nil {
		return fmt.Errorf("remove lab %s: %w", l.st.name, err)
	}
	errs := l.detachPods(ctx, st)
	for _, n := range st.spec.Nodes {
		if !n.Bare() {
			errs = append(errs, l.removeAgent(ctx, newNode(l, st.spec, n), st))
		}
	}
	errs = append(errs, l.removeNamespaces(ctx, st.spec)...)
	for _, dir := range agentDirs(st.spec) {
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	errs = append(errs, leftovers(st.spec)...)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove lab %s: %w", st.spec.Name, err)
	}
	l.log().Info("lab removed", "lab", st.spec.Name)
	return nil
}

// detachPods runs CNI DEL for every pod. A node whose agent hangs is given up after its
// first pod: `weft agent cleanup` takes the rest.
func (l *Lab) detachPods(ctx context.Context, st *state) []error {
	var errs []error
	hung := map[string]bool{}
	for _, p := range st.spec.Pods {
		if hung[p.Node] {
			continue
		}
		begin := time.Now()
		err := l.detachPod(ctx, st, p)
		hung[p.Node] = err != nil && time.Since(begin) >= delTimeout
		errs = append(errs, err)
	}
	return errs
}

// removeAgent stops a node's agent and has the binary clean up after it.
func (l *Lab) removeAgent(ctx context.Context, n *Node, st *state) error {
	var errs []error
	errs = append(errs, n.stopRecorded(ctx, st.Agents[n.Name]))
	if !exists(n.NetNS) || !exists(n.ConfigFile) || !agentLeft(st.spec.Name, n.Name) {
		return errors.Join(errs...)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	var out strings.Builder
	cmd := exec.CommandContext(ctx, st.Binary, "agent", "cleanup", "--config", n.ConfigFile)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, "/"
	if err := n.Do(cmd.Start); err != nil {
		errs = append(errs, fmt.Errorf("clean up after the agent of node %s: %w", n.Name, err))
	} else if err := cmd.Wait(); err != nil {
		errs = append(errs,
			fmt.Errorf("clean up after the agent of node %s: %w: %s", n.Name, err,
				strings.TrimSpace(out.String())))
	}
	return errors.Join(errs...)
}

func (n *Node) stopRecorded(ctx context.Context, p process) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := p.end(ctx, stopGrace); err != nil {
		return fmt.Errorf("stop agent of node %s: %w", n.Name, err)
	}
	return nil
}

// agentLeft says whether an agent of the node has ever made anything.
func agentLeft(lab, node string) bool {
	name := instance(lab, node)
	return exists(filepath.Join(agentBPFDir, name)) || exists(filepath.Join(agentRunDir, name)) ||
		exists(stateDir(lab, node))
}

// removeNamespaces ends what still runs in the lab's namespaces and deletes them.
func (l *Lab) removeNamespaces(ctx context.Context, s *Spec) []error {
	var names []string
	for _, ns := range namespaceNames(s) {
		names = append(names, ns.name)
	}
	var errs []error
	for _, p := range processesIn(names) {
		l.log().Warn("ending a process that still runs in the lab", "pid", p.PID)
		ctx, cancel := context.WithTimeout(ctx, killTimeout)
		// A command that had to be killed is not a mistake of the lab's.
		if err := p.end(ctx, leftGrace); err != nil && p.alive() {
			errs = append(errs, err)
		}
		cancel()
	}
	// Pods before nodes before wires: the order of making, backwards.
	for i := len(names) - 1; i >= 0; i-- {
		errs = append(errs, netns.Delete(names[i]))
	}
	return errs
}

// leftovers lists, as errors, everything of a lab that still exists outside its directory.
func leftovers(s *Spec) []error {
	var errs []error
	for _, ns := range namespaceNames(s) {
		if exists(netns.Path(ns.name)) {
			errs = append(errs,
				fmt.Errorf("network namespace %s exists: remove it with `ip netns del %s`", ns.name,
					ns.name))
		}
	}
	for _, dir := range agentDirs(s) {
		if exists(dir) {
			errs = append(errs,
				fmt.Errorf("directory %s exists: remove it when no agent of that instance runs",
					dir))
		}
	}
	return errs
}

func (l *Lab) removeDir() {
	if err := os.RemoveAll(labdir.Dir(l.st.name)); err != nil {
		l.log().Warn("remove lab directory", "err", err)
	}
}

// removeEmptyBases removes the directories above instances when the last lab is gone
// and nobody else uses them: os.Remove takes only empty ones.
func removeEmptyBases() {
	if os.Remove(labdir.Base) != nil {
		return
	}
	for _, dir := range []string{agentBPFDir, agentRunDir} {
		_ = os.Remove(dir)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
