package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTable: every row fits the tree as it is now.
func TestTable(t *testing.T) {
	table, err := loadTable("mutations.yaml", "../..")
	if err != nil {
		t.Fatal(err)
	}
	bpf := 0
	for _, m := range table {
		if m.datapath() {
			bpf++
		}
	}
	if len(table) < 60 || bpf < 25 || len(table)-bpf < 25 {
		t.Errorf("%d mutations, %d of them in the datapath: want 60, and 25 of each", len(table),
			bpf)
	}
}

func TestStaleTable(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(root, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("code.go", "one two two\n")
	row := func(old, more string) string {
		return "- {name: n, file: code.go, old: '" + old + "', new: x, why: w, package: ., run: T" +
			more + "}\n"
	}
	for name, c := range map[string]struct{ table, want string }{
		"good":         {row("one", ""), ""},
		"gone":         {row("three", ""), "0 times"},
		"not the only": {row("two", ""), "2 times"},
		"same":         {row("x", ""), "the same"},
		"a test": {strings.Replace(row("one", ""), "code.go", "code_test.go", 1),
			"shows nothing"},
		"no test":    {strings.Replace(row("one", ""), "run: T", "run: ''", 1), "must be given"},
		"two of one": {row("one", "") + row("one", ""), "two of that name"},
		"misspelt":   {row("one", ", wy: x"), "wy"},
		"a BPF file": {strings.Replace(row("one", ""), "code.go", "bpf/code.h", 1),
			"the only tests"},
		"no package": {strings.Replace(row("one", ""), "package: .", "package: nowhere", 1),
			"nowhere"},
	} {
		_, err := loadTable(write("table.yaml", c.table), root)
		if (err == nil) != (c.want == "") ||
			(err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestChanges: an object's name is its file's without the context, and nothing less.
func TestChanges(t *testing.T) {
	for _, c := range []struct {
		objects []string
		file    string
		want    bool
	}{
		{[]string{"sa"}, "sa_xdp.o", true},
		{[]string{"sa"}, "sa_test_xdp.o", false},
		{[]string{"sa_test"}, "sa_test_tc.o", true},
		{[]string{"from_pod", "sa"}, "from_wire_tc.o", false},
		{nil, "from_wire_tc.o", true},
		{[]string{"vmfork"}, "vmfork.o", true},
		{[]string{"sa"}, "vmfork.o", false},
		{nil, "vmfork.o", true},
		{nil, "abi.o", false},
	} {
		if got := (mutation{Objects: c.objects}).changes(c.file); got != c.want {
			t.Errorf("%v, %s: %v", c.objects, c.file, got)
		}
	}
}

func TestChoose(t *testing.T) {
	table := []mutation{{Name: "a", File: "x.h"}, {Name: "b", File: "x.h", Unproven: true},
		{Name: "c", File: "y.h"}}
	for want, o := range map[string]options{
		"abc": {}, "ab": {only: "x.h"}, "c": {only: "^c$"}, "b": {unproven: true},
	} {
		chosen, err := choose(slices.Clone(table), o)
		got := ""
		for _, m := range chosen {
			got += m.Name
		}
		if err != nil || got != want {
			t.Errorf("%+v: %q, %v, want %q", o, got, err, want)
		}
	}
	if _, err := choose(slices.Clone(table), options{only: "c", unproven: true}); err == nil {
		t.Error("chose none, and says nothing")
	}
}

// TestVerdict runs the runner on a module of its own: a fault that is noticed, one that is not, and
// those that say nothing.
func TestVerdict(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module example.test\n\ngo 1.26\n",
		"a.go":      "package a\n\nfunc Add(x, y int) int { return x + y }\n\nfunc Sub(x, y int) int { return x - y }\n",
		"a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) { if Add(2, 3) != 5 { t.Error() } }\n\nfunc TestBad(t *testing.T) { t.Error() }\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		old, new, run string
		want          error
	}{
		"noticed":         {"x + y", "x * y", "TestAdd", nil},
		"not noticed":     {"x - y", "y - x", "TestAdd", errSurvived},
		"does not build":  {"x + y", "x +", "TestAdd", errInvalid},
		"fails as it is":  {"x + y", "x * y", "TestBad", errBaseline},
		"no such test":    {"x + y", "x * y", "TestNothing", errBaseline},
		"noticed, beside": {"x + y", "x - y", "TestAdd", nil},
	} {
		r := &runner{root: root, scratch: t.TempDir(), baseline: map[string]*baseline{}}
		m := mutation{Name: name, File: "a.go", Old: c.old, New: c.new, Why: "w", Package: ".",
			Run: c.run}
		if err := r.judge(t.Context(), m); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	exit := exec.CommandContext(context.Background(), "false").Run()
	if err := verdict("load program: permission denied: R1 invalid mem access",
		exit); !errors.Is(err, errInvalid) {
		t.Errorf("what the verifier refuses is taken for %v", err)
	}
}
