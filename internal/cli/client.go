package cli

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/front/admin"
)

// client finds the agent to talk to: the one that is named, else the default
// instance's, else the one in this network namespace, else the only one.
func (a *app) client() (*admin.Client, error) {
	socket, err := a.findSocket()
	if err != nil {
		return nil, err
	}
	return admin.NewClient(socket).Near(a.runDir), nil
}

// show prints what fetch gets from the agent; unless that is good, the exit code says so. good may
// be nil.
func show[T any](ctx context.Context, a *app, fetch func(*admin.Client, context.Context) (T, error),
	write func(io.Writer, T, bool) error, good func(T) bool) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	what, err := fetch(client, ctx)
	if err != nil {
		return err
	}
	if err := a.Print(what,
		func(w io.Writer, wide bool) error { return write(w, what, wide) }); err != nil {
		return err
	}
	if good != nil && !good(what) {
		return &cmdutil.ExitError{Code: cmdutil.ExitFailed}
	}
	return nil
}

func (a *app) findSocket() (string, error) {
	defaultSocket := filepath.Join(a.runDir, admin.SocketName)
	switch {
	case a.Socket != "":
		return a.Socket, nil
	case a.Instance != "":
		return filepath.Join(a.runDir, a.Instance, admin.SocketName), nil
	}
	sockets := admin.Sockets(a.runDir)
	var here []string
	for _, socket := range sockets {
		if sameNetNS(socket) {
			here = append(here, socket)
		}
	}
	switch {
	case len(here) == 1:
		return here[0], nil
	case len(sockets) == 0 || sockets[0] == defaultSocket:
		return defaultSocket, nil
	case len(sockets) == 1:
		return sockets[0], nil
	}
	return "", cmdutil.UsageError("several agents run here: name one with --instance %s",
		strings.Join(a.instances(sockets), " | "))
}

// instances are the names behind sockets.
func (a *app) instances(sockets []string) []string {
	var names []string
	for _, socket := range sockets {
		name, err := filepath.Rel(a.runDir, filepath.Dir(socket))
		if err == nil && name != "." {
			names = append(names, name)
		}
	}
	return names
}

// sameNetNS says whether the process behind a socket is in our network namespace.
func sameNetNS(socket string) bool {
	connection, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return false
	}
	defer connection.Close()
	raw, err := connection.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || peer == nil {
		return false
	}
	theirs, err1 := os.Stat(filepath.Join("/proc", strconv.Itoa(int(peer.Pid)), "ns/net"))
	ours, err2 := os.Stat("/proc/self/ns/net")
	return err1 == nil && err2 == nil && os.SameFile(theirs, ours)
}

// completionTime bounds how long a shell waits for the agent.
const completionTime = 2 * time.Second

func (a *app) completeInstances(*cobra.Command, []string,
	string) ([]string, cobra.ShellCompDirective) {
	return a.instances(admin.Sockets(a.runDir)), cobra.ShellCompDirectiveNoFileComp
}

// completePods completes the names of the agent's endpoints.
func (a *app) completePods(_ *cobra.Command, args []string,
	_ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	client, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	endpoints, err := client.Endpoints(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, len(endpoints))
	for i, endpoint := range endpoints {
		names[i] = endpoint.Name()
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
