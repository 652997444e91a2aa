package doccheck

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// width is how many characters a line of prose has at most; a tab counts as four.
const width = 100

// preformatted finds what cannot be wrapped: tables, links alone in their line, code in a
// comment.
var preformatted = regexp.MustCompile(`^\||^\[[^\]]+\]: |^\s*//(go:|\t|  )|^\s*<!--|^[^ ]*$`)

// TestProseIsWrapped: pages outside their code and tables, and comments of Go that have a line of
// their own. clang-format wraps C.
func TestProseIsWrapped(t *testing.T) {
	for _, name := range tracked(t) {
		page, comments := strings.HasSuffix(name, ".md"), strings.HasSuffix(name, ".go")
		generated := strings.HasSuffix(name, "_gen.go") || name == "docs/cli.md" ||
			name == "docs/drop-reasons.md"
		if !page && !comments || generated || strings.HasPrefix(name, "LICENSE") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // removed and not committed
		}
		code, number := false, 0
		for line := range strings.Lines(string(text)) {
			number++
			line = strings.TrimSuffix(line, "\n")
			if page && strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			prose := page && !code || comments && strings.HasPrefix(strings.TrimSpace(line), "// ")
			if !prose || preformatted.MatchString(line) {
				continue
			}
			if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > width {
				t.Errorf("%s:%d has %d characters, want %d at most", name, number, n, width)
			}
		}
	}
}
