package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/netns"
)

// Node is a node of a cluster: namespaces of its own with a containerd, a kubelet and an agent in
// them. It lives until the test ends.
type Node struct {
	Name      string
	Addresses []netip.Addr
	// NetNS is the path of its network namespace, which has Uplink.
	NetNS string

	t      testing.TB
	dir    string
	number int
	cmd    *exec.Cmd
	in     io.Closer  // of its first process, which ends with it
	mu     sync.Mutex // one request at a time
	ask    *json.Encoder
	hear   *json.Decoder
}

// Uplink is a node's interface on the wire.
const Uplink = "eth0"

// The services of a node.
const (
	Containerd = "containerd"
	Kubelet    = "kubelet"
	Agent      = "weft"
)

// port is the node's on the wire.
func (n *Node) port() string { return fmt.Sprint("port-", n.number) }

// boot starts the node's first process.
func (n *Node) boot() {
	n.t.Helper()
	for _, name := range []string{"etc", "etc-work", "lib", "log", "opt/cni/bin"} {
		if err := os.MkdirAll(filepath.Join(n.dir, name), 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	n.cmd = exec.Command("/proc/self/exe")
	n.cmd.Env = append(os.Environ(), role+"="+roleNode)
	n.cmd.Stderr = os.Stderr
	n.cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID |
		unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	in, err := n.cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := netns.Do(n.NetNS, n.cmd.Start); err != nil {
		n.t.Fatalf("start node %s: %v", n.Name, err)
	}
	n.in = in
	n.t.Cleanup(n.halt)
	n.ask, n.hear = json.NewEncoder(in), json.NewDecoder(out)
	if err := n.ask.Encode(describe{Name: n.Name, Dir: n.dir}); err != nil {
		n.t.Fatalf("start node %s: %v", n.Name, err)
	}
	if err := n.answer(); err != nil {
		n.t.Fatalf("start node %s: %v", n.Name, err)
	}
}

// halt ends the node's first process, and so all that is in the node.
func (n *Node) halt() {
	if n.cmd.ProcessState != nil {
		return
	}
	n.in.Close()
	timer := time.AfterFunc(10*time.Second, func() { n.cmd.Process.Kill() }) //nolint:errcheck // gone
	defer timer.Stop()
	if err := n.cmd.Wait(); err != nil {
		n.t.Errorf("node %s: %v", n.Name, err)
	}
}

// Crash ends all that is in the node at once, and takes it off the wire. What it has on disk stays.
func (n *Node) Crash() {
	n.t.Helper()
	n.cmd.Process.Kill() //nolint:errcheck // it runs
	n.cmd.Wait()         //nolint:errcheck // killed
	n.in.Close()
	link, err := netlink.LinkByName(n.port())
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err == nil {
		err = netns.Delete(filepath.Base(n.NetNS))
	}
	if err == nil {
		err = removeGroups(os.Getenv(prefix) + n.Name)
	}
	if err != nil {
		n.t.Fatalf("crash of node %s: %v", n.Name, err)
	}
}

func (n *Node) answer() error {
	_, err := n.output()
	return err
}

func (n *Node) output() (string, error) {
	var a answer
	if err := n.hear.Decode(&a); err != nil {
		return "", fmt.Errorf("its first process does not answer: %w", err)
	}
	if a.Error != "" {
		return a.Output, errors.New(a.Error)
	}
	return a.Output, nil
}

func (n *Node) request(r request) string {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.ask.Encode(r)
	var out string
	if err == nil {
		out, err = n.output()
	}
	if err != nil {
		n.t.Fatalf("node %s: %s %s: %v", n.Name, r.Do, r.Name, err)
	}
	return out
}

// Start starts a service. Its output is appended to the file that Log names.
func (n *Node) Start(service string, args ...string) {
	n.t.Helper()
	n.request(request{Do: "start", Name: service, Args: args, Log: "/var/log/" + service + ".log"})
}

// Stop ends a service with a signal, and waits until it has ended.
func (n *Node) Stop(service string, signal unix.Signal) {
	n.t.Helper()
	n.request(request{Do: "signal", Name: service, Signal: signal})
	n.request(request{Do: "await", Name: service})
}

// Run runs a program in the node and returns what it says.
func (n *Node) Run(args ...string) string {
	n.t.Helper()
	return n.request(request{Do: "run", Args: args})
}

// Path is where the test finds a file of the node's.
func (n *Node) Path(file string) string {
	return filepath.Join("/proc", fmt.Sprint(n.cmd.Process.Pid), "root", file)
}

// Write writes a file of the node's, whole before it has its name.
func (n *Node) Write(file, text string) {
	n.t.Helper()
	path := n.Path(file)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		half := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
		err = errors.Join(os.WriteFile(half, []byte(text), 0o600), os.Rename(half, path))
	}
	if err != nil {
		n.t.Fatalf("node %s: %v", n.Name, err)
	}
}

// Log is the end of what a service has said.
func (n *Node) Log(service string) string {
	text, err := os.ReadFile(filepath.Join(n.dir, "log", service+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// Admin asks the node's agent.
func (n *Node) Admin() *admin.Client { return admin.NewClient(n.Path("/run/weft/agent.sock")) }
