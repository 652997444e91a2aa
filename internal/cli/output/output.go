// Package output prints a value as JSON, YAML or a table.
//
// Both machine formats come from the value's json tags, so that a field is called
// the same in -o json, in -o yaml and on the admin API's wire.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"
)

// Format is how a command's result is printed.
type Format string

// The formats. Wide is a table with more columns.
const (
	Table Format = "table"
	Wide  Format = "wide"
	JSON  Format = "json"
	YAML  Format = "yaml"
)

// Formats are all of them, in the order that help and completion show.
var Formats = []string{string(Table), string(Wide), string(JSON), string(YAML)}

// Parse reads a format's name.
func Parse(name string) (Format, error) {
	for _, known := range Formats {
		if name == known {
			return Format(name), nil
		}
	}
	return "", fmt.Errorf("unknown output format %q: use one of %s", name,
		strings.Join(Formats, ", "))
}

// Rows is a table: a header and lines of cells. WideFrom is the first column that
// only Wide shows; 0 means that there is none.
type Rows struct {
	Header   []string
	Lines    [][]string
	WideFrom int
	// Empty is printed instead of a table without lines.
	Empty string
}

// Add appends one line.
func (r *Rows) Add(cells ...string) { r.Lines = append(r.Lines, cells) }

// Write prints rows as aligned columns, two blanks apart.
func (r *Rows) Write(w io.Writer, wide bool) error {
	if len(r.Lines) == 0 && r.Empty != "" {
		_, err := fmt.Fprintln(w, r.Empty)
		return err
	}
	var buffer bytes.Buffer
	tabs := tabwriter.NewWriter(&buffer, 0, 8, 2, ' ', 0)
	for _, line := range append([][]string{r.Header}, r.Lines...) {
		if !wide && r.WideFrom > 0 && len(line) > r.WideFrom {
			line = line[:r.WideFrom]
		}
		fmt.Fprintln(tabs, strings.Join(line, "\t"))
	}
	if err := tabs.Flush(); err != nil {
		return err
	}
	// Trailing blanks go only now: an empty last cell must still count for the alignment.
	for line := range strings.Lines(buffer.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// Join writes a list with commas.
func Join[T fmt.Stringer](items []T) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.String()
	}
	return strings.Join(texts, ", ")
}

// Labels writes a set of labels in the order of their keys.
func Labels(set map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(set)) {
		pairs = append(pairs, key+"="+set[key])
	}
	return strings.Join(pairs, ",")
}

// Print writes value in a machine format, or calls table for people.
func Print(w io.Writer, format Format, value any, table func(w io.Writer, wide bool) error) error {
	switch format {
	case JSON:
		return writeJSON(w, value)
	case YAML:
		return writeYAML(w, value)
	case Table, Wide, "":
		return table(w, format == Wide)
	}
	return fmt.Errorf("unknown output format %q", format)
}

// Line writes value as JSON on one line.
func Line(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("encode json: %w", err)
	}
	return nil
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("encode json: %w", err)
	}
	return nil
}

// writeYAML goes through JSON: the tags are honoured, and JSON being YAML, decoding
// it into a node keeps the order of fields and the type of every scalar.
func writeYAML(w io.Writer, value any) error {
	var buffer bytes.Buffer
	if err := writeJSON(&buffer, value); err != nil {
		return err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(buffer.Bytes(), &node); err != nil {
		return fmt.Errorf("encode yaml: %w", err)
	}
	blockStyle(&node)
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(&node); err != nil {
		return fmt.Errorf("encode yaml: %w", err)
	}
	return encoder.Close()
}

// blockStyle undoes JSON's braces and quotes. Strings keep a style that quotes them
// when they would otherwise read as another type.
func blockStyle(node *yaml.Node) {
	switch node.Kind {
	case yaml.ScalarNode:
		if node.Tag == "!!str" || node.Style == yaml.DoubleQuotedStyle {
			node.Tag = "!!str"
		}
		node.Style = 0
	default:
		if len(node.Content) > 0 {
			node.Style = 0
		}
	}
	for _, child := range node.Content {
		blockStyle(child)
	}
}
