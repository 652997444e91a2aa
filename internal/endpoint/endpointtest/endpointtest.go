// Package endpointtest is what tests of endpoints and their fronts stand on: a node and
// pods as network namespaces without names, which the kernel takes away with the test's
// process, and recording fakes of the endpoint manager's neighbours.
package endpointtest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
)

const nodeEnv = "WEFT_TEST_NODE"

// Main runs a package's tests in a network and mount namespace of their own, which plays the node.
// Call it from TestMain. Without root the tests run where they are and NeedRoot skips.
func Main(m *testing.M) {
	// The process's first thread must stay in the node: /proc/PID/ns/net is its namespace,
	// and a goroutine of NewPod that ended on it would leave it elsewhere.
	runtime.LockOSThread()
	fuzzing := slices.ContainsFunc(os.Args,
		func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") })
	if os.Getenv(nodeEnv) != "" {
		if err := hideState(); err != nil {
			fmt.Fprintln(os.Stderr, "hide the machine's state directories:", err)
			os.Exit(1)
		}
	}
	if os.Getenv(nodeEnv) != "" || os.Geteuid() != 0 || fuzzing {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), nodeEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run tests in a network namespace:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// hideState puts an empty file system over /var/lib, in the node's mount namespace only:
// foreign CNI tools keep their caches there.
func hideState() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, "mode=755")
}

// NeedRoot skips the test unless it runs on a node made by Main.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Getenv(nodeEnv) == "" {
		t.Skip("needs root: makes network namespaces and interfaces")
	}
}

// NewPod makes a network namespace with its loopback up and returns its path. It is gone
// when the test ends, or when Close is called on the returned file and nobody else holds it.
func NewPod(t testing.TB) (path string, ns *os.File) {
	t.Helper()
	type result struct {
		ns  *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		// Never unlocked: the thread sits in the new namespace and dies with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			err = netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}})
		}
		done <- result{f, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { r.ns.Close() })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), r.ns.Fd()), r.ns
}

// Datapath records which endpoints are attached.
type Datapath struct {
	mu       sync.Mutex
	attached map[uint16]datapath.Endpoint
	attaches int
	// Fail, if set, is asked before each call: op is "attach" or "detach".
	Fail func(op string, ep datapath.Endpoint) error
}

func (d *Datapath) ask(op string, ep datapath.Endpoint) error {
	if d.Fail == nil {
		return nil
	}
	return d.Fail(op, ep)
}

// AttachEndpoint refuses a slot or an address that somebody else has.
func (d *Datapath) AttachEndpoint(ep datapath.Endpoint) error {
	if err := d.ask("attach", ep); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for slot, other := range d.attached {
		if other.HostIf != ep.HostIf && (slot == ep.Slot || shareAddress(ep, other)) {
			return fmt.Errorf("slot or address of %s belongs to %s", ep.HostIf, other.HostIf)
		}
	}
	if d.attached == nil {
		d.attached = map[uint16]datapath.Endpoint{}
	}
	d.attached[ep.Slot] = ep
	d.attaches++
	return nil
}

func shareAddress(a, b datapath.Endpoint) bool {
	taken := b.Addresses()
	return a.Network == b.Network &&
		slices.ContainsFunc(a.Addresses(),
			func(addr netip.Addr) bool { return slices.Contains(taken, addr) })
}

// DetachEndpoint forgets the endpoint.
func (d *Datapath) DetachEndpoint(ep datapath.Endpoint) error {
	if err := d.ask("detach", ep); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.attached, ep.Slot)
	return nil
}

// CheckEndpoint finds fault with an endpoint that is not attached as it should be.
func (d *Datapath) CheckEndpoint(ep datapath.Endpoint) error {
	if err := d.ask("check", ep); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if now, ok := d.attached[ep.Slot]; !ok || now.HostIf != ep.HostIf ||
		now.Network != ep.Network || !slices.Equal(now.Addresses(), ep.Addresses()) {
		return fmt.Errorf("from_pod is not attached to %s", ep.HostIf)
	}
	return nil
}

// Attached returns what is attached, by slot.
func (d *Datapath) Attached() map[uint16]datapath.Endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.attached)
}

// Attaches returns how often something was attached.
func (d *Datapath) Attaches() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.attaches
}

// Directory holds published endpoints.
type Directory struct {
	mu      sync.Mutex
	objects map[string]v1alpha1.Endpoint
	fail    error
}

// Break makes every call fail with err from now on; nil mends it.
func (d *Directory) Break(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

// PutEndpoint publishes an endpoint.
func (d *Directory) PutEndpoint(ep *v1alpha1.Endpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	if d.objects == nil {
		d.objects = map[string]v1alpha1.Endpoint{}
	}
	d.objects[ep.Metadata.Key()] = *ep
	return nil
}

// DeleteEndpoint withdraws an endpoint.
func (d *Directory) DeleteEndpoint(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	delete(d.objects, key)
	return nil
}

// Objects returns what is published, by key.
func (d *Directory) Objects() map[string]v1alpha1.Endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.objects)
}
