package e2e

import (
	"os"
	"testing"
	"time"
)

func TestDebugStuck(t *testing.T) {
	if os.Getenv("DEBUG_STUCK") == "" {
		t.Skip()
	}
	l := useShared(t)
	for range 6 {
		for i, mode := range modes[:4] {
			_ = i
			ok := t.Run(mode, func(t *testing.T) {
				load := startLoad(t, paths(l)...)
				setMode(t, l, mode)
				load.flowing(t, "after")
				load.stop()
			})
			if !ok {
				t.Log("STUCK")
				os.WriteFile("/tmp/e2e-stuck", []byte(l.Name()), 0o644)
				time.Sleep(20 * time.Minute)
			}
		}
	}
}
