package doccheck

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const module = "weft.dev/weft/"

// apart are packages that are no part of the binary: tools, and what only tests import.
var apart = []string{"internal/gen", "internal/testrun", "internal/testsum", "test/mutate",
	"internal/doccheck", "internal/endpoint/endpointtest", "test/e2e"}

var tableRow = regexp.MustCompile(`(?m)^\| (\d+) \| (.+) \|$`)

// rows reads the table of packages: package to row.
func rows(page string) map[string]int {
	at := map[string]int{}
	for _, match := range tableRow.FindAllStringSubmatch(page, -1) {
		row, _ := strconv.Atoi(match[1])
		for _, name := range code.FindAllStringSubmatch(match[2], -1) {
			if strings.Contains(name[1], "/") {
				at[name[1]] = row
			}
		}
	}
	return at
}

// imports are the packages of this module that each of its packages imports, tests left out.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() &&
			(strings.HasPrefix(entry.Name(), ".git") || entry.Name() == "build" ||
				entry.Name() == "testdata") {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, filepath.Dir(path))
		found[name] = append(found[name], "")
		for _, imported := range file.Imports {
			if own, ok := strings.CutPrefix(strings.Trim(imported.Path.Value, `"`), module); ok {
				found[name] = append(found[name], own)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var labOnly = regexp.MustCompile(`^internal/(lab|lab/traffic|bench(/.*)?|demo|cli/labcli)$`)

// TestAgentCarriesNoLab: what labs, demo and benchmarks are made of is linked into weft-lab only.
func TestAgentCarriesNoLab(t *testing.T) {
	all := imports(t)
	linked, next := map[string]bool{}, []string{"cmd/weft"}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		if name != "" && !linked[name] {
			linked[name] = true
			next = append(next, all[name]...)
		}
	}
	if !linked["internal/agent"] {
		t.Fatal("cmd/weft does not import the agent: the walk is wrong")
	}
	for name := range linked {
		if labOnly.MatchString(name) {
			t.Errorf("cmd/weft imports %s, by whatever way", name)
		}
	}
}

func TestImportsGoDown(t *testing.T) {
	at := rows(pages(t)["ARCHITECTURE.md"])
	if len(at) == 0 {
		t.Fatal("ARCHITECTURE.md has no table of packages")
	}
	for _, name := range apart {
		at[name] = 100
	}
	for name, list := range imports(t) {
		if _, known := at[name]; !known {
			t.Errorf("%s is not in the table of packages in ARCHITECTURE.md: add it to a row above all that it imports", name)
			continue
		}
		for _, imported := range list {
			if imported != "" && at[imported] >= at[name] {
				t.Errorf("%s (row %d) imports %s (row %d): only rows below may be imported, see ARCHITECTURE.md", name, at[name], imported, at[imported])
			}
		}
	}
}
