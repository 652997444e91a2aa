// Package sdnotify tells systemd how its service is, as sd_notify(3) describes it.
package sdnotify

import (
	"fmt"
	"net"
	"os"
)

// What a service says once.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
)

// Send sends one or more lines NAME=VALUE to the service manager that started this process. Without
// one, which the environment's NOTIFY_SOCKET names, it does nothing.
func Send(lines string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A name that begins with '@' is of the abstract name space: package net takes it as it is.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer conn.Close() //nolint:errcheck // a datagram is sent or it is not
	if _, err := conn.Write([]byte(lines)); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}
