package endpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netns"
)

// errGone is in the error when a thing is certainly not there any more, as opposed to
// when it could not be looked at.
var errGone = errors.New("gone")

// openNetNS opens a pod's network namespace. It refuses what is none, and the agent's
// own: an endpoint there would be the node itself. All later work goes through the open
// file, so that the path may change under it.
func openNetNS(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: netns: %s does not exist (%w)", ErrNetNS, path, errGone)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: netns: %w", ErrNetNS, err)
	}
	if err := checkNetNS(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkNetNS(f *os.File) error {
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%w: netns: %s is not a network namespace (%w): give a path such as /run/netns/NAME or /proc/PID/ns/net",
			ErrNetNS, f.Name(), errGone)
	}
	own, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("%w: own: %w", ErrNetNS, err)
	}
	theirs, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: netns: %w", ErrNetNS, err)
	}
	if os.SameFile(own, theirs) {
		return fmt.Errorf("%w: netns: %s is the node's own: pods on the host network need no plugin", ErrNetNS, f.Name())
	}
	return nil
}

// inNetNS runs fn inside the namespace of an open file.
func inNetNS(ns *os.File, fn func() error) error {
	return netns.Do(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), fn)
}

// hostHandle and podHandle open netlink in one namespace; close them.
func hostHandle() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

func podHandle(ns *os.File) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in pod: %w", err)
	}
	return h, nil
}

// sysctl is one setting of an interface, its path below /proc/sys/net with %s for the name.
type sysctl struct{ path, value string }

// set writes settings of an interface in the thread's network namespace. Paths are used,
// not dotted names, because an interface name may hold dots.
func set(dev string, settings []sysctl) error {
	for _, s := range settings {
		path := "/proc/sys/net/" + fmt.Sprintf(s.path, dev)
		if err := os.WriteFile(path, []byte(s.value), 0); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	return nil
}

// hostHasIPv6 tells whether the node's kernel does IPv6 at all.
func hostHasIPv6() bool {
	data, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err == nil && strings.TrimSpace(string(data)) == "0"
}
