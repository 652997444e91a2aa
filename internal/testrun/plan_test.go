package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	all := []string{
		module + "internal/ipam", module + "internal/lab", module + "internal/lab/traffic",
		module + "internal/labels", module + "test/e2e", module + "test/model",
	}
	onLabs, rest := plan(all, nil)
	var got []string
	for _, j := range onLabs {
		got = append(got, strings.Trim(j.path()+" "+j.part, " "))
	}
	want := []string{
		"test/e2e others", "test/e2e sealed", "test/e2e keys", "test/e2e upgrades", "test/model",
		"internal/lab", "internal/lab/traffic",
	}
	if !slices.Equal(got, want) {
		t.Errorf("on labs: %q, want %q", got, want)
	}
	if want := []string{all[0], all[3]}; !slices.Equal(rest.packages, want) || !rest.nice {
		t.Errorf("the rest: %+v, want %q", rest, want)
	}
	if whole, _ := plan(all[4:5], []string{"-run", "TestX"}); len(whole) != 1 ||
		whole[0].part != "" {
		t.Errorf("with a choice of tests: %+v, want one job", whole)
	}
}

// TestPartsAreWhole: each test of a package that is cut runs in one part, and only one.
func TestPartsAreWhole(t *testing.T) {
	flag := func(j job, name string) string {
		if at := slices.Index(j.flags, name); at >= 0 {
			return j.flags[at+1]
		}
		return map[string]string{"-run": ".", "-skip": "^$"}[name]
	}
	for path, parts := range parts {
		for _, test := range []string{"TestSealed", "TestKeyLife", "TestUpgradeSealed",
			"TestOther"} {
			var in []string
			for _, j := range cut(module+path, parts) {
				if regexp.MustCompile(flag(j, "-run")).MatchString(test) &&
					!regexp.MustCompile(flag(j, "-skip")).MatchString(test) {
					in = append(in, j.part)
				}
			}
			if len(in) != 1 {
				t.Errorf("%s of %s runs in %q", test, path, in)
			}
		}
	}
}
