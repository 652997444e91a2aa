package main

import (
	"cmp"
	"slices"
	"strings"
)

const module = "weft.dev/weft/"

// labs are packages whose tests wait for agents, timers and streams, the longest first. One that
// begins with such a path counts, too. All other packages compute.
var labs = []string{
	"test/e2e", "test/model", "internal/front/cni", "test/wirefuzz", "internal/bench",
	"internal/demo",
	"internal/lab", "internal/connectivity", "internal/agent", "test/kms", "test/tshark",
	"test/deb",
}

// parts cut a package whose tests would be the longest lane by far: those whose names match, and
// in the last part all others, so that a new test is in one without being named here; that one
// takes longest and begins first. Each part is a process of its own, and makes labs of its own.
var parts = map[string][]part{
	"test/e2e": {
		{"sealed", "^Test(Sealed|Encryption|Narrow|Verify)"},
		{"keys", "^Test(Rotation|KE|Key|Extend|Direction)"},
		{"upgrades", "^Test(Upgrade|Service)"},
	},
}

type part struct{ name, tests string }

// plan gives the jobs of the labs in the order in which to start them, and the job of all else.
// Flags may choose tests themselves, so with any no package is cut.
func plan(packages, flags []string) (onLabs []job, rest job) {
	rest = job{flags: append([]string{"-p", "1"}, flags...), nice: true}
	for _, p := range packages {
		path := strings.TrimPrefix(p, module)
		switch {
		case rank(path) == len(labs):
			rest.packages = append(rest.packages, p)
		case len(flags) == 0 && parts[path] != nil:
			onLabs = append(onLabs, cut(p, parts[path])...)
		default:
			onLabs = append(onLabs, job{packages: []string{p}, flags: flags})
		}
	}
	slices.SortStableFunc(onLabs, func(a, b job) int {
		return cmp.Compare(rank(a.path()), rank(b.path()))
	})
	return onLabs, rest
}

// rank is where a package stands in labs.
func rank(path string) int {
	for i, lab := range labs {
		if path == lab || strings.HasPrefix(path, lab+"/") {
			return i
		}
	}
	return len(labs)
}

func cut(pkg string, parts []part) []job {
	var jobs []job
	var before []string
	skip := func() []string {
		if len(before) == 0 {
			return nil
		}
		return []string{"-skip", strings.Join(before, "|")}
	}
	for _, p := range parts {
		flags := append([]string{"-run", p.tests}, skip()...)
		jobs = append(jobs, job{packages: []string{pkg}, part: p.name, flags: flags})
		before = append(before, p.tests)
	}
	return append([]job{{packages: []string{pkg}, part: "others", flags: skip()}}, jobs...)
}
