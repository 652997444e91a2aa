package doccheck

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const securityModel = "docs/security-model.md"

var (
	// A test in a page: package, function and, after a colon, a row or subtest.
	namedTest = regexp.MustCompile(`^([a-z0-9]+)\.((?:Test|Fuzz)\w+)(?:: (.+))?$`)
	looksTest = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(\w+ \*testing\.[TF]\)`)
	tableHead = regexp.MustCompile(`^\|.*\| *test *\|$`)
)

// testSources is the text of each package's tests, by the last part of its directory.
func testSources(t *testing.T) map[string]string {
	t.Helper()
	found, dirs := map[string]string{}, map[string]string{}
	for _, top := range []string{"internal", "test"} {
		err := filepath.WalkDir(filepath.Join(root, top),
			func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
					return err
				}
				dir := filepath.Dir(path)
				name := filepath.Base(dir)
				if other := dirs[name]; other != "" && other != dir {
					return fmt.Errorf("%s and %s have one name: tests in pages need a longer one",
						other, dir)
				}
				dirs[name] = dir
				text, err := os.ReadFile(path)
				found[name] += string(text)
				return err
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// testProblems says which tests a page names that are not there, and which lines of its tables name
// none.
func testProblems(page string, sources map[string]string) (named int, problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	functions := map[string]bool{} // package.Test
	for name, source := range sources {
		for _, f := range testFunc.FindAllStringSubmatch(source, -1) {
			functions[name+"."+f[1]] = true
		}
	}
	for _, match := range code.FindAllStringSubmatch(page, -1) {
		name := namedTest.FindStringSubmatch(match[1])
		if name == nil {
			if looksTest.MatchString(match[1]) {
				problem("`%s` is not of the form package.TestName or package.TestName: row",
					match[1])
			}
			continue
		}
		named++
		source, function, row := sources[name[1]], name[2], name[3]
		if !functions[name[1]+"."+function] {
			problem("there is no test `%s.%s`", name[1], function)
		} else if row != "" && !strings.Contains(source, strconv.Quote(row)) &&
			!rowOfFamily(source, row) {
			problem("`%s.%s` has no row %q", name[1], function, row)
		}
	}
	inTable := false
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		isRow := strings.HasPrefix(line, "|")
		if tableHead.MatchString(line) {
			inTable = true
			continue
		}
		inTable = inTable && isRow
		cells := strings.Split(line, "|")
		if !inTable || strings.HasPrefix(line, "|-") {
			continue
		}
		if last := strings.TrimSpace(cells[len(cells)-2]); !looksTest.MatchString(last) &&
			!strings.HasPrefix(last, "none: ") {
			problem("neither a test nor \"none: \" and the reason: %s", line)
		}
	}
	return named, problems
}

// rowOfFamily finds a row whose name is made of the address family and a text.
func rowOfFamily(source, row string) bool {
	for _, family := range []string{"IPv4", "IPv6"} {
		if rest, ok := strings.CutPrefix(row, family); ok &&
			strings.Contains(source, strconv.Quote(rest)) {
			return true
		}
	}
	return false
}

// TestNamedTestsExist: each line of the security model is shown by a test that is there, or says
// that none does.
func TestNamedTestsExist(t *testing.T) {
	named, problems := testProblems(pages(t)[securityModel], testSources(t))
	if named < 50 {
		t.Errorf("%s names %d tests only: the pattern is wrong", securityModel, named)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", securityModel, p)
	}
}

// TestMadeUpTests: names that no test has are found.
func TestMadeUpTests(t *testing.T) {
	sources := map[string]string{"box": "func TestLid(t *testing.T) {\n\t{\"open\", 1}, {name + \" shut\", 2},\n}\nfunc FuzzLid(f *testing.F) {}\n// TestLock is no function.\n"}
	for page, good := range map[string]bool{
		"`box.TestLid`":            true,
		"`box.FuzzLid`":            true,
		"`box.TestLid: open`":      true,
		"`box.TestLid: IPv6 shut`": true,
		"`box.TestLid: ajar`":      false,
		"`box.TestLi`":             false,
		"`box.TestLock`":           false,
		"`bag.TestLid`":            false,
		"`TestLid`":                false,
		"`TestLid…`":               false,
		"| x | | test |\n|---|---|---|\n| a | b | `box.TestLid` |": true,
		"| x | | test |\n|---|---|---|\n| a | b | none: c |":       true,
		"| x | | test |\n|---|---|---|\n| a | b | |":               false,
		"| x | | test |\n|---|---|---|\n| a | b | none |":          false,
	} {
		if _, problems := testProblems(page, sources); good != (len(problems) == 0) {
			t.Errorf("%s: %q", page, problems)
		}
	}
}
