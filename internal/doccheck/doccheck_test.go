// Package doccheck holds the pages in this repository to what is there: links that resolve, verbs,
// files and make targets that exist, and imports as ARCHITECTURE.md draws them.
package doccheck

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// pages reads every Markdown file, by its path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() &&
			(entry.Name() == ".git" || entry.Name() == "build" || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found["README.md"] == "" || found["docs/README.md"] == "" {
		t.Fatal("no README.md or no docs/README.md")
	}
	return found
}

var (
	fence     = regexp.MustCompile("(?ms)^```.*?^```")
	code      = regexp.MustCompile("`([^`\n]+)`")
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	tableRule = regexp.MustCompile(`^\|[-:| ]+\|$`)
	notSlug   = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the names that a page's headings have on the web.
func anchors(page string) map[string]bool {
	names := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		names[strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(match[1]), ""), " ",
			"-")] = true
	}
	return names
}

func TestLinksResolve(t *testing.T) {
	all := pages(t)
	for name, page := range all {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := name
			if target != "" {
				file = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil ||
				strings.HasPrefix(target, "/") {
				t.Errorf("%s: the link %s leads nowhere", name, match[1])
				continue
			}
			if anchor != "" && !anchors(all[file])[anchor] {
				t.Errorf("%s: %s has no heading for the link %s", name, file, match[1])
			}
		}
	}
}

// TestTablesHaveHeads: rows after an empty line are no part of the table before, and no table
// without a head.
func TestTablesHaveHeads(t *testing.T) {
	for name, page := range pages(t) {
		lines := strings.Split(fence.ReplaceAllString(page, ""), "\n")
		for i, line := range lines {
			begins := strings.HasPrefix(line, "|") &&
				(i == 0 || !strings.HasPrefix(lines[i-1], "|"))
			if begins && (i+1 == len(lines) || !tableRule.MatchString(lines[i+1])) {
				t.Errorf("%s: a table begins without a head: %s", name, line)
			}
		}
	}
}

func TestEveryPageIsInTheIndex(t *testing.T) {
	all := pages(t)
	for name := range all {
		if dir, file := filepath.Split(name); dir == "docs/" && file != "README.md" &&
			!strings.Contains(all["docs/README.md"], "("+file+")") {
			t.Errorf("docs/README.md has no link to %s", file)
		}
	}
}

// snippets are a page's code, in fences and in lines.
func snippets(page string) []string {
	var out []string
	for _, block := range fence.FindAllString(page, -1) {
		out = append(out, strings.Split(block, "\n")[1:]...)
	}
	for _, match := range code.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		out = append(out, match[1])
	}
	return out
}

var (
	verbHeading = regexp.MustCompile(`(?m)^## weft (.+)$`)
	// A call of weft: at the beginning of a snippet, or after a prompt, sudo, a path or an
	// operator.
	call    = regexp.MustCompile(`(?:^|\$ |sudo |&& |/|"|-- )weft ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?([^|>&#]*)`)
	anyFlag = regexp.MustCompile(`(?:^|[ \[])(--[a-z][a-z-]*)`)
)

// manual is the command line by verb: the text of each verb's help.
func manual() (verbs map[string]string, groups map[string]bool) {
	reference := reference()
	at := verbHeading.FindAllStringSubmatchIndex(reference, -1)
	verbs, groups = map[string]string{"help": "", "completion": "",
		"": reference[:at[0][0]]}, map[string]bool{}
	for i, match := range at {
		end := len(reference)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		name := reference[match[2]:match[3]]
		verbs[name] = reference[match[1]:end]
		if group, _, nested := strings.Cut(name, " "); nested {
			groups[group] = true
		}
	}
	return verbs, groups
}

func TestVerbsExist(t *testing.T) {
	verbs, groups := manual()
	seen := 0
	for name, page := range pages(t) {
		for _, snippet := range snippets(page) {
			for _, match := range call.FindAllStringSubmatch(snippet, -1) {
				seen++
				verb, rest := match[1], match[3]
				if groups[match[1]] && match[2] != "" {
					verb += " " + match[2]
				}
				if _, ok := verbs[verb]; !ok {
					t.Errorf("%s: there is no verb `weft %s`: %s", name, verb, snippet)
					continue
				}
				rest, _, _ = strings.Cut(rest+" ", " -- ")
				for _, match := range anyFlag.FindAllStringSubmatch(rest, -1) {
					help := verbs[""] + verbs[verb] + verbs[strings.Fields(verb)[0]]
					if !strings.Contains(help, match[1]+" ") {
						t.Errorf("%s: `weft %s` has no flag %s: %s", name, verb, match[1], snippet)
					}
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no page calls weft: the pattern is wrong")
	}
}

var (
	ownPath    = regexp.MustCompile(`^(?:api|bench|bpf|cmd|docs|examples|internal|scripts|test|LICENSES|\.ci)/[\w./*-]*$`)
	makeTarget = regexp.MustCompile(`(?:^|&& |\$ )make ([a-z][a-z0-9-]*)`)
)

// TestNamedFilesExist looks at file names and make targets in the pages about the code.
func TestNamedFilesExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	all := pages(t)
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md",
		"docs/install.md"} {
		for _, snippet := range snippets(all[name]) {
			if ownPath.MatchString(snippet) {
				if found, _ := filepath.Glob(filepath.Join(root, snippet)); len(found) == 0 &&
					!strings.Contains(snippet, "NAME") {
					t.Errorf("%s: there is no %s", name, snippet)
				}
			}
			for _, match := range makeTarget.FindAllStringSubmatch(snippet, -1) {
				if !regexp.MustCompile(`(?m)^` + match[1] + `:`).Match(makefile) {
					t.Errorf("%s: the Makefile has no target %s", name, match[1])
				}
			}
		}
	}
}
