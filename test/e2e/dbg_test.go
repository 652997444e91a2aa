package e2e

import (
	"os"
	"testing"
	"time"

	"weft.dev/weft/internal/lab"
)

func dbg(t *testing.T, l *lab.Lab) {
	if os.Getenv("DBG") != "" && t.Failed() {
		os.WriteFile("/tmp/e2e-stuck", []byte(l.Name()), 0o644)
		time.Sleep(180 * time.Second)
	}
}
