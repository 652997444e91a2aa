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
	if !strings.Contains(out.String(), `{"Action":"fail","Package":"nowhere"}`) {
		t.Errorf("told %q", out.String())
	}
}
