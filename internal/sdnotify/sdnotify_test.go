package sdnotify

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestSend(t *testing.T) {
	for name, path := range map[string]string{
		"a path":               filepath.Join(t.TempDir(), "notify"),
		"an abstract socket's": fmt.Sprintf("@weft-sdnotify-%d", os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			manager, err := net.ListenUnixgram("unixgram",
				&net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer manager.Close()
			t.Setenv("NOTIFY_SOCKET", path)
			if err := Send(Ready + "\nSTATUS=ready"); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 100)
			n, err := manager.Read(got)
			if want := "READY=1\nSTATUS=ready"; err != nil || string(got[:n]) != want {
				t.Errorf("got %q, %v", got[:n], err)
			}
		})
	}
}

func TestNoManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Send(Ready); err != nil {
		t.Error(err)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if Send(Ready) == nil {
		t.Error("nobody listens, and nothing is said of it")
	}
}
