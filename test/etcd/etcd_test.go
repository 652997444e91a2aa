package etcd

import (
	"net"
	"slices"
	"testing"
)

// TestStartWithTakenPort: a cluster one of whose members finds its port taken is started again, with other ports.
func TestStartWithTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free := freeAddress
	defer func() { freeAddress = free }()
	asked := 0
	freeAddress = func(t testing.TB) string {
		if asked++; asked == 2 {
			return taken.Addr().String()
		}
		return free(t)
	}
	c := Start(t, Options{Members: 3})
	if asked != 6 {
		t.Errorf("%d ports were asked for, want those of two starts", asked)
	}
	for _, m := range c.Members {
		if m.hasEnded() || slices.ContainsFunc(m.args, func(arg string) bool { return arg == "http://"+taken.Addr().String() }) {
			t.Errorf("%s: ended %v, %q", m.Name, m.hasEnded(), m.args)
		}
	}
}
