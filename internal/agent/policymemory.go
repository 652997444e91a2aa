package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/statefile"
)

// policyMemory is the file of the policies that were in force last: an agent that starts while a
// file of objects is broken enforces what it was declared in it.
func (a *Agent) policyMemory() string { return filepath.Join(a.cfg.StateDir(), "policies.json") }

// recallPolicies tells the store which policies were in force, before it is first read.
func (a *Agent) recallPolicies() error {
	seeded, ok := a.store.(interface {
		SeedPolicies([]*policy.Policy, []string)
	})
	if !ok {
		return nil
	}
	return recall(a.policyMemory(), "policies", func(data []byte) error {
		list, files, err := policy.Recall(data)
		if err == nil {
			seeded.SeedPolicies(list, files)
		}
		return err
	})
}

// recall takes up what a previous run has written down of objects, if there is anything.
func recall(path, what string, seed func(data []byte) error) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s of a previous run: %w", what, err)
	}
	if err := seed(data); err != nil {
		return fmt.Errorf("%s: %w: remove it once all files of objects are in order", path, err)
	}
	return nil
}

// rememberPolicies writes the policies in force down, if they are others than last time. reconcile
// alone calls it.
func (a *Agent) rememberPolicies(list []*policy.Policy) error {
	data, err := policy.Remember(list)
	if err != nil {
		return err
	}
	if bytes.Equal(a.remembered, data) {
		return nil
	}
	if err := statefile.Write(a.policyMemory(), data); err != nil {
		return err
	}
	a.remembered = data
	return nil
}
