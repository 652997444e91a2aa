package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// journal remembers what was caught until a run has come to its end, so that one that was
// interrupted goes on. It is void as soon as anything in the tree has changed.
type journal struct {
	path string

	mu sync.Mutex
	// Tree is a hash of all that builds or tests depend on.
	Tree string `json:"tree"`
	// Caught are names of mutations.
	Caught []string `json:"caught"`
}

func openJournal(path, root string, fresh bool) (*journal, error) {
	tree, err := hashTree(root)
	if err != nil {
		return nil, err
	}
	j, old := &journal{path: path, Tree: tree}, journal{}
	text, err := os.ReadFile(path)
	if !fresh && err == nil && json.Unmarshal(text, &old) == nil && old.Tree == tree {
		j.Caught = old.Caught
	}
	return j, os.MkdirAll(filepath.Dir(path), 0o755)
}

func (j *journal) caught(m mutation) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Contains(j.Caught, m.Name)
}

func (j *journal) note(m mutation) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Caught = append(j.Caught, m.Name)
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return os.WriteFile(j.path, text, 0o644)
}

// end: the next run begins anew.
func (j *journal) end() error {
	if err := os.Remove(j.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// hashTree hashes every file that a build or a test of the table reads.
func hashTree(root string) (string, error) {
	h := sha256.New()
	for _, top := range []string{"Makefile", "go.mod", "go.sum", "api", "bpf", "internal", "test"} {
		err := filepath.WalkDir(filepath.Join(root, top),
			func(path string, e fs.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() || filepath.Ext(path) == ".o" {
					return err
				}
				text, err := os.ReadFile(path)
				fmt.Fprintf(h, "%s\x00%d\x00", path, len(text))
				h.Write(text)
				return err
			})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
