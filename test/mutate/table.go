package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// mutation is one fault to put into the tree, and the test that must notice.
type mutation struct {
	// Name is what MUTATE selects by.
	Name string `yaml:"name"`
	// File is where, from the tree's root. Old must be in it exactly once; New takes its place.
	File string `yaml:"file"`
	Old  string `yaml:"old"`
	New  string `yaml:"new"`
	// Objects are the BPF objects that the test runs, without _xdp and _tc: only these are built
	// anew. All if it is empty.
	Objects []string `yaml:"objects"`
	// Unproven is set until the test has been seen to notice: `make mutate` tries it, a random part
	// leaves it out. Take the mark away then.
	Unproven bool `yaml:"unproven"`
	// Why says what the fault would mean.
	Why string `yaml:"why"`
	// Package and Run are the smallest test that must fail, for go test.
	Package string `yaml:"package"`
	Run     string `yaml:"run"`
}

// datapath says whether the fault is in a BPF program.
func (m mutation) datapath() bool { return strings.HasPrefix(m.File, "bpf/") }

// changes says whether an object of that file name has the fault in it.
func (m mutation) changes(object string) bool {
	name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(object, ".o"), "_xdp"), "_tc")
	return name != "abi" && (len(m.Objects) == 0 || slices.Contains(m.Objects, name))
}

// loadTable reads the table and holds it to its form; stale is what no longer fits the tree.
func loadTable(path, root string) ([]mutation, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var table []mutation
	if err := decoder.Decode(&table); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var wrong []error
	names := map[string]bool{}
	for _, m := range table {
		if names[m.Name] {
			wrong = append(wrong, fmt.Errorf("%s: there are two of that name", m.Name))
		}
		names[m.Name] = true
		if _, err := m.mutated(root); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", m.Name, err))
		}
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%s is stale: %w", path, errors.Join(wrong...))
	}
	return table, nil
}

// mutated is the file with the fault in it.
func (m mutation) mutated(root string) ([]byte, error) {
	switch {
	case m.Name == "" || m.File == "" || m.Old == "" || m.Why == "" || m.Package == "" ||
		m.Run == "":
		return nil, errors.New("name, file, old, why, package and run must be given")
	case len(m.Objects) > 0 && !m.datapath():
		return nil, errors.New("objects are the datapath's")
	case m.datapath() && !slices.Contains(datapathPackages, m.Package):
		return nil, fmt.Errorf("package: want one of %s, the only tests that take objects of a fault", strings.Join(datapathPackages, ", "))
	case m.Old == m.New:
		return nil, errors.New("old and new are the same")
	case strings.HasSuffix(m.File, "_test.go"):
		return nil, errors.New("a fault in a test shows nothing")
	}
	if _, err := regexp.Compile(m.Run); err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	if _, err := os.Stat(filepath.Join(root, m.Package)); err != nil {
		return nil, fmt.Errorf("package: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(root, m.File))
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return nil, fmt.Errorf("%s holds %q %d times, not once", m.File, m.Old, n)
	}
	return []byte(strings.Replace(string(text), m.Old, m.New, 1)), nil
}
