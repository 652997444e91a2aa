package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/netns"
)

// Open finds a lab by name, whichever process built it.
func Open(name string) (*Lab, error) { return OpenWith(name, Options{}) }

// OpenWith is Open with a logger and timeouts; Options.Binary is ignored, see SetBinary.
func OpenWith(name string, opts Options) (*Lab, error) {
	if !nameForm.MatchString(name) || len(name) > maxName {
		return nil, fmt.Errorf("%q is not a lab's name: use a-z, 0-9 and -", name)
	}
	l := &Lab{opts: opts, st: &store{name: name}}
	if _, err := l.st.read(); err != nil {
		return nil, err
	}
	return l, nil
}

// Name is the lab's name.
func (l *Lab) Name() string { return l.st.name }

// Dir is the lab's directory, with lab.json, the nodes' logs and the objects.
func (l *Lab) Dir() string { return labdir.Dir(l.st.name) }

// ObjectsDir is the directory of objects that all agents of the lab watch.
func (l *Lab) ObjectsDir() string { return labdir.Objects(l.st.name) }

// Spec is the lab's description with the pods as they are now, nil when the lab is gone.
func (l *Lab) Spec() *Spec {
	st, err := l.st.read()
	if err != nil {
		return nil
	}
	return st.spec.clone()
}

// Node finds a node, nil if there is none.
func (l *Lab) Node(name string) *Node {
	for _, n := range l.Nodes() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Nodes lists the nodes in the file's order.
func (l *Lab) Nodes() []*Node {
	st, err := l.st.read()
	if err != nil {
		return nil
	}
	var out []*Node
	for _, n := range st.spec.Nodes {
		out = append(out, newNode(l, st.spec, n))
	}
	return out
}

// Pod finds a pod by name or by namespace/name, nil if there is none.
func (l *Lab) Pod(name string) *Pod {
	for _, p := range l.Pods() {
		if p.Name == name || p.Key() == name {
			return p
		}
	}
	return nil
}

// Pods lists the pods in the order they were added.
func (l *Lab) Pods() []*Pod {
	st, err := l.st.read()
	if err != nil {
		return nil
	}
	var out []*Pod
	for _, p := range st.spec.Pods {
		out = append(out, newPod(st.spec, p, st.Pods[p.Name]))
	}
	return out
}

// NetNSOf is the path of a node's or pod's network namespace.
func (l *Lab) NetNSOf(target string) (string, error) {
	if n := l.Node(target); n != nil {
		return n.NetNS, nil
	}
	if p := l.Pod(target); p != nil {
		return p.NetNS, nil
	}
	var names []string
	for _, n := range l.Nodes() {
		names = append(names, n.Name)
	}
	for _, p := range l.Pods() {
		names = append(names, p.Name)
	}
	return "", fmt.Errorf("no node or pod %q in lab %s: there are %s", target, l.Name(),
		strings.Join(names, ", "))
}

// Exec runs a command inside a node's or pod's network namespace and waits for it. The
// mounts stay the machine's own, so bpffs pins are seen. The code is the command's, 128
// plus the signal that ended it, or 127 with an error when it could not be started.
func (l *Lab) Exec(ctx context.Context, target string, argv []string, stdio Stdio) (int, error) {
	if len(argv) == 0 {
		return 127, errors.New("no command given")
	}
	path, err := l.NetNSOf(target)
	if err != nil {
		return 127, err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio.In, stdio.Out, stdio.Err
	if err := netns.Do(path, cmd.Start); err != nil {
		return 127, fmt.Errorf("start %s in %s: %w", argv[0], target, err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal()), nil
		}
		return exit.ExitCode(), nil
	} else if err != nil {
		return 127, fmt.Errorf("run %s in %s: %w", argv[0], target, err)
	}
	return 0, nil
}

// Output runs a command like Exec and returns what it wrote to its standard output; a
// failure quotes both of its outputs.
func (l *Lab) Output(ctx context.Context, target string, argv ...string) (string, error) {
	var out, errOut strings.Builder
	code, err := l.Exec(ctx, target, argv, Stdio{Out: &out, Err: &errOut})
	if err == nil && code != 0 {
		err = fmt.Errorf("%s in %s: exit code %d: %s", strings.Join(argv, " "), target, code,
			strings.TrimSpace(errOut.String()+out.String()))
	}
	return out.String(), err
}
