package demo

import (
	"fmt"
	"html/template"
	"io"
	"strings"

	"weft.dev/weft/internal/cli/output"
)

// indent sets a chapter's content apart from its heading.
const indent = "   "

// story is told to a writer as it happens and kept for the page.
type story struct {
	out      io.Writer
	sections []*section
	checks   []Check
	// afterCheck says that the last line told was a check's.
	afterCheck bool
	// facts are the few figures that open the page.
	facts []fact
}

// section is one chapter.
type section struct {
	Number int
	Title  string
	Blocks []block
}

// block is one piece of a chapter. Exactly one field is set, Command together with Output.
type block struct {
	Text    string
	Command string
	Output  string
	Table   *table
	Map     *labMap
	SVG     template.HTML // from our own writers, which escape what they are given
	Check   *Check
}

// fact is a figure with what it says.
type fact struct{ Value, Label string }

// table has its first Left columns aligned to the left, the others to the right.
type table struct {
	Header []string
	Rows   [][]string
	Left   int
}

func newStory(out io.Writer) *story { return &story{out: out} }

// section begins a chapter.
func (s *story) section(title string) {
	next := &section{Number: len(s.sections) + 1, Title: title}
	s.sections = append(s.sections, next)
	fmt.Fprintf(s.out, "\n%d. %s\n\n", next.Number, title)
	s.afterCheck = false
}

// add keeps a piece for the page.
func (s *story) add(b block) {
	if len(s.sections) > 0 {
		last := s.sections[len(s.sections)-1]
		last.Blocks = append(last.Blocks, b)
	}
}

// say writes a paragraph.
func (s *story) say(format string, values ...any) {
	text := fmt.Sprintf(format, values...)
	s.print(wrap(text, 92))
	s.add(block{Text: text})
}

// show writes a command and what it printed.
func (s *story) show(command, printed string) {
	printed = strings.TrimRight(printed, "\n")
	s.print("$ " + command + "\n" + printed + "\n")
	s.add(block{Command: command, Output: printed})
}

// showTable writes a table.
func (s *story) showTable(t *table) {
	s.print(t.text())
	s.add(block{Table: t})
}

// check notes whether something held.
func (s *story) check(name string, ok bool, format string, values ...any) {
	detail := fmt.Sprintf(format, values...)
	// One line: an error may quote a log.
	made := Check{Name: name, OK: ok, Detail: strings.Join(strings.Fields(detail), " ")}
	s.checks = append(s.checks, made)
	s.add(block{Check: &made})
	fmt.Fprintf(s.out, "%s%s\n", indent, made.line())
	s.afterCheck = true
}

// fact notes a figure for the head of the page.
func (s *story) fact(value, label string) { s.facts = append(s.facts, fact{value, label}) }

// print writes indented lines and a blank one.
func (s *story) print(text string) {
	if s.afterCheck {
		fmt.Fprintln(s.out)
		s.afterCheck = false
	}
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Fprintln(s.out, strings.TrimRight(indent+line, " \n"))
	}
	fmt.Fprintln(s.out)
}

// line is a check for people.
func (c Check) line() string {
	verdict := "ok    "
	if !c.OK {
		verdict = "FAILED"
	}
	return fmt.Sprintf("%s %-26s %s", verdict, c.Name, c.Detail)
}

// text is the table in aligned columns.
func (t *table) text() string {
	width := make([]int, len(t.Header))
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		for i, cell := range row {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	rows := output.Rows{Header: t.aligned(t.Header, width)}
	for _, row := range t.Rows {
		rows.Add(t.aligned(row, width)...)
	}
	var text strings.Builder
	_ = rows.Write(&text, true) // a strings.Builder takes everything
	return text.String()
}

// aligned pads the cells of the right-hand columns from the left.
func (t *table) aligned(row []string, width []int) []string {
	out := make([]string, len(row))
	for i, cell := range row {
		if i >= t.Left {
			cell = strings.Repeat(" ", width[i]-len([]rune(cell))) + cell
		}
		out[i] = cell
	}
	return out
}

// wrap breaks a paragraph into lines of at most width characters.
func wrap(text string, width int) string {
	var out strings.Builder
	length := 0
	for _, word := range strings.Fields(text) {
		size := len([]rune(word))
		switch {
		case length == 0:
		case length+1+size > width:
			out.WriteString("\n")
			length = 0
		default:
			out.WriteString(" ")
			length++
		}
		out.WriteString(word)
		length += size
	}
	return out.String()
}
