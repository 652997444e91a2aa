// Package sibling finds Weft's other programs: weft is the agent and what talks to it, weft-lab is
// labs, demo and benchmarks, weft-sealer seals and opens what comes in bulk.
package sibling

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Find looks for a program beside the running one, so that two builds on a machine do not mix, then
// in PATH.
func Find(name string) (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the running program: %w", err)
	}
	if path, err := exec.LookPath(filepath.Join(filepath.Dir(own), name)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither in %s nor in PATH: install it there (`make build` makes build/%s)",
			name, filepath.Dir(own), name)
	}
	return path, nil
}
