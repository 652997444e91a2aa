// Package labtest is what the tests that stand on a lab share: the lab itself, its binary, and
// waiting for what must come.
package labtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// ABOut are the nodes and the wire of a lab's file: two nodes with pods' ranges, and the machine
// out, which knows nothing of Weft. On the wire, checksums are whole, as on a real network.
const ABOut = `
nodes:
  - {name: a, addresses: [192.0.2.1/24, "2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: [192.0.2.2/24, "2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
  - {name: out, addresses: [192.0.2.9/24, "2001:db8::9/64"], agent: false}
wires:
  - {name: w0, nodes: [a, b, out], offload: false}
`

// OpenPolicy lets the pods of namespace open travel in cleartext.
const OpenPolicy = `apiVersion: weft.dev/v1alpha1
kind: EncryptionPolicy
metadata: {name: open-is-plain, namespace: open}
spec:
  selector: {}
`

// ReadyTimeout is how long an agent may take to be ready where others start beside it, the machine
// is busy, and the kernel verifies the programs of all: a second on a machine with time.
const ReadyTimeout = 2 * time.Minute

// Binary is the weft that a test two directories below the module's root runs: $WEFT_BINARY, or one
// built into a directory. weft-sealer is beside it.
func Binary(dir string) (string, error) {
	if given := os.Getenv("WEFT_BINARY"); given != "" {
		return filepath.Abs(given)
	}
	cmd := exec.Command("go", "build", "-tags=grpcnotrace", "-o", dir, "./cmd/weft",
		"./cmd/weft-sealer")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Dir = "../.."
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build weft: %w\n%s", err, text)
	}
	return filepath.Join(dir, "weft"), nil
}

// Eventually polls until ok returns nil, and fails with its last answer.
func Eventually(t testing.TB, patience time.Duration, what string, ok func() error) {
	t.Helper()
	var last error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(20 * time.Millisecond) {
		if last = ok(); last == nil {
			return
		}
	}
	t.Fatalf("%s: not within %s: %v", what, patience, last)
}
