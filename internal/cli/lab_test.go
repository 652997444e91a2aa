package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asWeft in the environment makes a process of this test binary the command line.
const asWeft = "WEFT_TEST_AS_WEFT"

// fakeLab says how it was called.
const fakeLab = "#!/bin/sh\ndir=${0%/*}\necho \"${dir##*/}: $* lab=$WEFT_LAB\"\nexit 7\n"

// install makes directories with this test binary as weft, and with a weft-lab that says how it was
// called.
func install(t *testing.T) (dir, inPath string) {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, data := range map[string][]byte{
		"with/weft": binary, "with/weft-lab": []byte(fakeLab),
		"without/weft": binary, "path/weft-lab": []byte(fakeLab),
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir, filepath.Join(dir, "path")
}

func TestLabVerbsAreHandedOver(t *testing.T) {
	dir, inPath := install(t)
	for _, test := range []struct {
		from, path, args string
		code             int
		want             string
	}{
		{"with", inPath, "lab exec client -- ping -c 1", 7,
			"with: lab exec client -- ping -c 1 lab=outer\n"},
		{"with", inPath, "-o json bench route --quick", 7,
			"with: -o json bench route --quick lab=outer\n"},
		{"with", inPath, "demo --help", 7, "with: demo --help"},
		{"with", inPath, "help lab up", 7, "with: help lab up"},
		{"with", inPath, "__complete lab up --f", 7, "with: __complete lab up --f"},
		{"without", inPath, "lab up", 7, "path: lab up"},
		{
			"without", "/nowhere", "lab up", 1,
			"weft: weft-lab is neither in " + filepath.Join(dir, "without") +
				" nor in PATH: install it there",
		},
		{"with", inPath, "--help", 0, "Build a playground"},
		{"with", inPath, "__complete la", 0, "lab"},
		{"with", inPath, "version", 0, "kernel:"},
		{"with", inPath, "labb", 2, "unknown command"},
	} {
		cmd := exec.Command(filepath.Join(dir, test.from, "weft"), strings.Fields(test.args)...)
		cmd.Env = append(os.Environ(), asWeft+"=1", "WEFT_LAB=outer", "PATH="+test.path)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != test.code ||
			!strings.Contains(out.String(), test.want) {
			t.Errorf("weft %s, %s: code %d\n%s", test.args, test.from, code, &out)
		}
	}
}
