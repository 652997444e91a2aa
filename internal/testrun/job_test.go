package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCopy(t *testing.T) {
	var out bytes.Buffer
	j := job{packages: []string{"p"}, part: "one"}
	in := `{"Action":"run","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"fa`
	if j.copy(strings.NewReader(in), &lines{to: &out}) {
		t.Error("a failure was seen")
	}
	want := `{"Action":"run","Package":"p [one]","Test":"TestA"}` + "\n" + `{"Action":"fa` + "\n"
	if out.String() != want {
		t.Errorf("passed on %q, want %q", out.String(), want)
	}
	if !j.copy(strings.NewReader(`{"Action":"fail","Package":"p"}`+"\n"), &lines{to: &out}) {
		t.Error("no failure was seen")
	}
}

// TestDies: a command that fails and says nothing is a failed package all the same.
func TestDies(t *testing.T) {
	var out bytes.Buffer
	job{packages: []string{module + "nowhere"}, flags: []string{"-p", "none"}}.run(&lines{to: &out})
	if !strings.Contains(out.String(), `{"Action":"fail","Package":"`+module+`nowhere"}`) {
		t.Errorf("told %q", out.String())
	}
}

// TestAnnounced: every package is told of before any begins, by the name under which it begins and
// ends: what never does is missed.
func TestAnnounced(t *testing.T) {
	labs, rest := plan([]string{module + "test/e2e", module + "test/model",
		module + "internal/ipam", module + "internal/labels"}, nil)
	var out bytes.Buffer
	for _, j := range append(labs, rest) {
		j.announce(&lines{to: &out})
	}
	announced := out.String()
	for _, j := range append(labs, rest) {
		for _, pkg := range j.packages {
			var begun bytes.Buffer
			j.copy(strings.NewReader(`{"Action":"start","Package":"`+pkg+`"}`+"\n"),
				&lines{to: &begun})
			if !strings.Contains(announced, begun.String()) {
				t.Errorf("%s begins as %s, which is not announced:\n%s", pkg, begun.String(),
					announced)
			}
		}
	}
	if n := strings.Count(announced, "\n"); n != len(labs)+2 {
		t.Errorf("%d are announced:\n%s", n, announced)
	}
}

// TestNothingToRun: that packages cannot even be listed is a failure that counts.
func TestNothingToRun(t *testing.T) {
	var out bytes.Buffer
	if err := run([]string{"./nowhere"}, nil, &lines{to: &out}); err == nil {
		t.Error("no error")
	}
	if !strings.Contains(out.String(), `{"Action":"fail","Package":"testrun"}`) {
		t.Errorf("told %q", out.String())
	}
}
