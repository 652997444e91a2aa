// Package labdir is where labs are on a machine, for who looks one up without building any.
package labdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// Base has a directory for each lab.
	Base = "/run/weft-lab"
	// State is the file in it that records the lab; a directory without one is none.
	State = "lab.json"
)

// ErrNoLab is returned for a lab that is not there.
var ErrNoLab = errors.New("no such lab")

// Dir is a lab's directory, whether there is such a lab or not.
func Dir(lab string) string { return filepath.Join(Base, lab) }

// Objects is the directory of objects that all agents of a lab watch.
func Objects(lab string) string { return filepath.Join(Dir(lab), "objects") }

// Missing is ErrNoLab for a lab, with what to do.
func Missing(lab string) error {
	return fmt.Errorf("%w: %s: build it with `weft lab up`", ErrNoLab, lab)
}

// Find is Objects of a lab that there is.
func Find(lab string) (string, error) {
	if _, err := os.Stat(filepath.Join(Dir(lab), State)); errors.Is(err, os.ErrNotExist) {
		return "", Missing(lab)
	} else if err != nil {
		return "", fmt.Errorf("find lab: %w", err)
	}
	return Objects(lab), nil
}

// List names the labs of this machine, half-built ones too.
func List() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(Base, "*", State))
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	return names, nil
}
