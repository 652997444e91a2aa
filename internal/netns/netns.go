// Package netns runs functions inside network namespaces and makes named ones.
//
// A namespace is named by a path: /proc/PID/ns/net, or /run/netns/NAME as made by
// iproute2 and by Create. The mount namespace never changes, so bpffs, /run and
// every other file stay visible inside Do; /sys/class/net does not follow and must
// not be read there. /proc/sys/net does follow, through /proc/thread-self.
package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dir is where named namespaces are bind-mounted, iproute2's directory.
const Dir = "/run/netns"

// Path returns the path of a named namespace.
func Path(name string) string { return filepath.Join(Dir, name) }

// Do runs fn with its thread inside the network namespace at path; an empty path
// means the caller's own. fn runs in a goroutine of its own whose thread dies when
// it could not be put back, so that no other goroutine ever runs in a wrong namespace.
// Goroutines that fn starts do not inherit the namespace; sockets that it opens keep it.
func Do(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	target, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer target.Close()
	result := make(chan error, 1)
	go onOtherThread(func() { result <- inThread(int(target.Fd()), fn) })
	return <-result
}

// onOtherThread locks its goroutine to a thread that is not the process's main one and runs fn
// there, which unlocks it. /proc/PID/ns/net, and so what /proc/self/ns/net says to anybody in
// this process, is the main thread's: it never leaves the network namespace that it began in.
func onOtherThread(fn func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		fn()
		return
	}
	// This goroutine keeps the main thread until the other one has a thread of its own.
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		fn()
	}()
	<-done
	runtime.UnlockOSThread()
}

// inThread switches the locked thread, runs fn and switches back. It unlocks the
// thread only after the switch back, else the runtime destroys it.
func inThread(target int, fn func() error) error {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer own.Close()
	if err := unix.Setns(target, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace: %w", err)
	}
	fnErr := fn()
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err == nil {
		runtime.UnlockOSThread()
	}
	return fnErr
}

// Create makes a named network namespace, its loopback down, and returns its path.
// It fails if the name is taken.
func Create(name string) (string, error) {
	if err := shareDir(); err != nil {
		return "", err
	}
	path := Path(name)
	mountpoint, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return "", fmt.Errorf("create network namespace %s: %w", name, err)
	}
	mountpoint.Close()
	result := make(chan error, 1)
	// Never unlocked: the thread sits in the new namespace and must die with the goroutine.
	go onOtherThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("unshare network namespace: %w", err)
			return
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			result <- fmt.Errorf("bind network namespace to %s: %w", path, err)
			return
		}
		result <- nil
	})
	if err := <-result; err != nil {
		return "", errors.Join(err, os.Remove(path))
	}
	return path, nil
}

// Delete removes a named network namespace. It is not an error if there is none.
func Delete(name string) error {
	path := Path(name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace %s: %w", name, err)
	}
	return nil
}

// shareDir makes Dir a shared mount point, as `ip netns add` does, so that
// namespaces made here are seen, and can be freed, from other mount namespaces.
func shareDir() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", Dir, err)
	}
	if err := unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, ""); err == nil {
		return nil
	} else if !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("share %s: %w", Dir, err)
	}
	if err := unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", Dir, err)
	}
	if err := unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share %s: %w", Dir, err)
	}
	return nil
}
