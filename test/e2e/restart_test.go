package e2e

import (
	"testing"

	"weft.dev/weft/internal/lab"
)

// modes in the order in which TestModes walks through them.
var modes = []string{"auto", "xdp", "tc", "stack", "auto"}

// paths are traffic across nodes and inside one. Each pod gets one path's only: more would fill the
// 256 packets of a veth's ring whenever a busy machine is late, and say nothing about the datapath.
func paths(l *lab.Lab) []path {
	return []path{{l.Pod("client"), l.Pod("server")}, {l.Pod("server"), l.Pod("db")}}
}

func setMode(t *testing.T, l *lab.Lab, mode string) {
	t.Helper()
	for _, n := range agents(l) {
		writeKeys(t, n, map[string]any{"mode": mode})
		if err := n.RestartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := status(t, n); string(s.Mode.Asked) != mode {
			t.Errorf("node %s: mode asked %s, not %s", n.Name, s.Mode.Asked, mode)
		}
	}
}

// TestModes goes through all modes by restart: traffic goes on, and in each mode every pair can
// talk, and kill -9 of the agents under load loses nothing.
func TestModes(t *testing.T) {
	l := useShared(t)
	for i, mode := range modes {
		name := mode
		if i > 0 {
			name = modes[i-1] + " to " + mode
		}
		t.Run("change "+name, func(t *testing.T) {
			before := kernelLosses(t, l)
			load := startLoad(t, paths(l)...)
			setMode(t, l, mode)
			load.flowing(t, "after the change of mode")
			load.tcpWhole(t)
			t.Logf("UDP while the mode changed:\n%s", load.lost())
			tellLosses(t, l, before)
		})
		t.Run("connected "+name, func(t *testing.T) { connected(t, l) })
		if i == len(modes)-1 {
			break
		}
		t.Run("kill "+mode, func(t *testing.T) { killUnderLoad(t, l) })
	}
}

// killUnderLoad kills each agent, then both, with SIGKILL: not one packet may be lost.
func killUnderLoad(t *testing.T, l *lab.Lab) {
	a, b := l.Node("a"), l.Node("b")
	t.Cleanup(func() { ensureStarted(t, a, false); ensureStarted(t, b, false) })
	before := kernelLosses(t, l)
	load := startLoad(t, paths(l)...)
	for _, victims := range [][]*lab.Node{{a}, {b}, {a, b}} {
		for _, n := range victims {
			if err := n.KillAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		load.flowing(t, "without agents")
		for _, n := range victims {
			if err := n.StartAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		load.flowing(t, "with the agents back")
	}
	load.nothingLost(t)
	if t.Failed() {
		tellLosses(t, l, before)
	}
}
