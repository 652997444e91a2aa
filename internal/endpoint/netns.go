package endpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/netns"
)

// openNetNS opens a pod's network namespace. It refuses what is none, and the agent's
// own: an endpoint there would be the node itself. All later work goes through the open
// file, so that the path may change under it.
func openNetNS(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: netns: %s does not exist (%w)", ErrNetNS, path, netdev.ErrGone)
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
			ErrNetNS, f.Name(), netdev.ErrGone)
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
