package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// FieldError is one mistake in a lab file: where it is and how to mend it.
type FieldError struct {
	File  string // empty for a Spec that was not read from a file
	Line  int    // 0 if unknown
	Field string // such as nodes[1].podCIDRs[0]
	Msg   string
}

// Error reads "file:line: field: message".
func (e *FieldError) Error() string {
	where := ""
	if e.File != "" {
		where = e.File + ":"
		if e.Line > 0 {
			where += strconv.Itoa(e.Line) + ":"
		}
		where += " "
	}
	if e.Field != "" {
		where += e.Field + ": "
	}
	return where + e.Msg
}

// decoder turns YAML into a Spec by hand, because only so every mistake keeps its
// line and field and all are told at once.
type decoder struct {
	file  string
	lines map[string]int // field path to line, for the checks that follow
	errs  []error
}

// parse decodes, fills defaults and validates.
func parse(name string, data []byte) (*Spec, error) {
	d := &decoder{file: name, lines: map[string]int{}}
	root, err := d.document(data)
	if err != nil {
		return nil, err
	}
	spec := d.spec(root)
	if len(d.errs) > 0 {
		return nil, errors.Join(d.errs...)
	}
	spec.setDefaults()
	if err := validate(spec, name, d.lines); err != nil {
		return nil, err
	}
	return spec, nil
}

// document reads exactly one YAML document.
func (d *decoder) document(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, &FieldError{File: d.file, Msg: "is empty: at least name, nodes and wires are needed, see examples/lab.yaml"}
	} else if err != nil {
		return nil, &FieldError{File: d.file, Msg: err.Error()}
	}
	var more yaml.Node
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, &FieldError{File: d.file, Msg: "holds more than one YAML document: keep one lab per file"}
	}
	return doc.Content[0], nil
}

func (d *decoder) fail(n *yaml.Node, field, format string, args ...any) {
	d.errs = append(d.errs, &FieldError{File: d.file, Line: n.Line, Field: field, Msg: fmt.Sprintf(format, args...)})
}

// fields maps a mapping's keys to what reads their values.
type fields map[string]func(n *yaml.Node, path string)

// mapping reads a mapping and refuses unknown and repeated keys.
func (d *decoder) mapping(n *yaml.Node, path string, known fields) {
	n = resolve(n)
	d.lines[path] = n.Line
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "must be a mapping (key: value)")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		field := join(path, key.Value)
		read, ok := known[key.Value]
		switch {
		case !ok:
			d.fail(key, field, "is not a known key%s", nearest(key.Value, known))
		case seen[key.Value]:
			d.fail(key, field, "is given twice: keep one")
		default:
			seen[key.Value] = true
			d.lines[field] = key.Line
			read(value, field)
		}
	}
}

// list reads a sequence; an empty value is an empty list.
func (d *decoder) list(n *yaml.Node, path string, item func(n *yaml.Node, path string)) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "must be a list")
		return
	}
	for i, c := range n.Content {
		c = resolve(c)
		field := fmt.Sprintf("%s[%d]", path, i)
		d.lines[field] = c.Line
		item(c, field)
	}
}

// text reads a scalar as a string, whatever YAML takes it for.
func (d *decoder) text(n *yaml.Node, path string) string {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		d.fail(n, path, "must be a text")
		return ""
	}
	return n.Value
}

func (d *decoder) boolean(n *yaml.Node, path string) *bool {
	var v bool
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&v) != nil {
		d.fail(n, path, "must be true or false")
		return nil
	}
	return &v
}

func (d *decoder) integer(n *yaml.Node, path string, low, high int) int {
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || v < low || v > high {
		d.fail(n, path, "must be a whole number from %d to %d", low, high)
		return 0
	}
	return v
}

func (d *decoder) prefix(n *yaml.Node, path, example string) netip.Prefix {
	p, err := netip.ParsePrefix(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.fail(n, path, "%q is not an address with prefix length: write it like %s", n.Value, example)
	}
	return p
}

func (d *decoder) addr(n *yaml.Node, path string) netip.Addr {
	a, err := netip.ParseAddr(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.fail(n, path, "%q is not an IP address: write it like 10.77.1.100 or fd77:1::100, without prefix length", n.Value)
	}
	return a
}

func (d *decoder) texts(n *yaml.Node, path string) map[string]string {
	out := map[string]string{}
	d.each(n, path, func(key string, v *yaml.Node, field string) { out[key] = d.text(v, field) })
	return out
}

// each reads a mapping with free keys.
func (d *decoder) each(n *yaml.Node, path string, item func(key string, n *yaml.Node, path string)) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "must be a mapping (key: value)")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, field := n.Content[i].Value, join(path, n.Content[i].Value)
		if seen[key] {
			d.fail(n.Content[i], field, "is given twice: keep one")
			continue
		}
		seen[key] = true
		d.lines[field] = n.Content[i].Line
		item(key, resolve(n.Content[i+1]), field)
	}
}

// raw reads a mapping of any shape: configuration that the agent checks.
func (d *decoder) raw(n *yaml.Node, path string) map[string]any {
	if isNull(n) {
		return nil
	}
	var out map[string]any
	if err := n.Decode(&out); err != nil {
		d.fail(n, path, "must be a mapping of the agent's configuration keys: %v", err)
	}
	return out
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// nearest suggests the known key that is most like the one given.
func nearest(key string, known fields) string {
	names := make([]string, 0, len(known))
	for k := range known {
		names = append(names, k)
	}
	sort.Strings(names)
	best, distance := "", 3
	for _, k := range names {
		if n := editDistance(strings.ToLower(key), strings.ToLower(k)); n < distance {
			best, distance = k, n
		}
	}
	if best != "" {
		return fmt.Sprintf(": did you mean %q?", best)
	}
	return ": known are " + strings.Join(names, ", ")
}

// editDistance is Levenshtein's; keys that differ much in length are told apart early.
func editDistance(a, b string) int {
	if len(a) > len(b)+3 || len(b) > len(a)+3 {
		return 99
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
