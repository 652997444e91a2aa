package doccheck

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// glossary is the section of ARCHITECTURE.md that says what each term means, and in its last column
// what is not said instead.
const glossary = "## Glossary"

// deprecated reads the glossary: each word or phrase that is not to be used, and the term that is.
func deprecated(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), glossary+"\n")
	if !found {
		t.Fatalf("ARCHITECTURE.md has no section %q", glossary)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	words := map[string]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			continue
		}
		for _, match := range code.FindAllStringSubmatch(cells[2], -1) {
			words[match[1]] = strings.TrimSpace(cells[0])
		}
	}
	if len(words) < 10 {
		t.Fatalf("the glossary names %d words that are not to be used: is its table still read?",
			len(words))
	}
	return words
}

// tracked lists the files of the work tree, but for what git ignores.
func tracked(t *testing.T) []string {
	t.Helper()
	list, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others",
		"--exclude-standard").Output()
	if err != nil {
		t.Skipf("not a git work tree: %v", err)
	}
	return strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
}

// exempt are what may say it all the same: history and this test, what others have written.
var exempt = regexp.MustCompile(`^(CHANGELOG\.md|LICENSE|LICENSES/|bench/results/|go\.sum|internal/doccheck/words_test\.go|.*/testdata/)`)

// keepsWord marks a line whose bytes are a format on disk or on a wire, which a rename would break.
const keepsWord = "glossary: format"

// camel finds the words inside an identifier.
var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// wordPattern finds a word or phrase in a line, also as a part of an identifier (fooBar, foo_bar).
func wordPattern(word string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)(?:^|[^a-z])` +
		strings.ReplaceAll(regexp.QuoteMeta(word), " ", `[\s*/]+`) + `s?(?:$|[^a-z])`)
}

func longest(words []string) string {
	return slices.MaxFunc(words, func(a, b string) int { return len(a) - len(b) })
}

// TestGlossary keeps the tree to one term for one thing.
func TestGlossary(t *testing.T) {
	words := deprecated(t)
	patterns := map[string]*regexp.Regexp{}
	for word := range words {
		patterns[word] = wordPattern(word)
	}
	for _, name := range tracked(t) {
		if exempt.MatchString(name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || bytes.IndexByte(text, 0) >= 0 {
			continue // removed and not committed; not text
		}
		if name == "ARCHITECTURE.md" { // but for the glossary
			before, after, _ := strings.Cut(string(text), glossary+"\n")
			_, after, _ = strings.Cut(after, "\n## ")
			text = []byte(before + after)
		}
		whole := name + "\n" + string(text)
		lower := strings.ToLower(whole)
		for word, pattern := range patterns {
			// Most files have none of it, which a search for text tells faster than a pattern.
			if !strings.Contains(lower, strings.ToLower(longest(strings.Fields(word)))) {
				continue
			}
			number := 0
			for line := range strings.Lines(whole) {
				if pattern.MatchString(camel.ReplaceAllString(line, "$1 $2")) &&
					!strings.Contains(line, keepsWord) {
					t.Errorf("%s:%d says %q for what is a %q: %s", name, number, word, words[word],
						strings.TrimSpace(line))
				}
				number++
			}
		}
	}
}
