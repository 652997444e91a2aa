// Package strictyaml reads YAML into Go structs and refuses what it does not
// understand: unknown and repeated keys, wrong types, bad addresses. Every
// error names file, line and field, and all errors of a document come at once.
package strictyaml

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the size of the largest file that is read, in bytes. Ours are a few
// kilobytes; a larger one is a mistake and would only cost memory.
const MaxSize = 1 << 20

// maxParts is the number of documents that a file may have, empty ones included.
const maxParts = 20000

// maxErrors bounds the errors reported for one document.
const maxErrors = 50

// Error names what is wrong, and where.
type Error struct {
	File  string
	Line  int    // 1-based; 0: not about a line
	Field string // dotted path; "": not about a field
	Msg   string
}

// Error is "file:line: field: msg", without the parts that are not known.
func (e Error) Error() string {
	s := e.File
	if e.Line > 0 {
		s += ":" + strconv.Itoa(e.Line)
	}
	if s != "" {
		s += ": "
	}
	if e.Field != "" {
		s += e.Field + ": "
	}
	return s + e.Msg
}

// Join makes one error of many, nil of none. errors.As finds each Error in it.
func Join(errs []Error) error {
	list := make([]error, len(errs))
	for i, e := range errs {
		list[i] = e
	}
	return errors.Join(list...)
}

// Doc is one document of a file.
type Doc struct {
	// File is the name of the file in errors.
	File string
	// Root is the document's value.
	Root *yaml.Node

	offset int            // lines before the part of the file that Root was parsed from
	lines  map[string]int // by field, filled by Decode
}

// Split parses the documents of a file. A syntax error costs its own document
// only: those before and after it are returned. Empty documents are left out.
func Split(file string, data []byte) ([]*Doc, []Error) {
	return SplitUpTo(MaxSize, file, data)
}

// SplitUpTo is Split for what may have another size, in bytes: what other programs write.
func SplitUpTo(size int, file string, data []byte) ([]*Doc, []Error) {
	if err := checkText(size, file, data); err != nil {
		return nil, []Error{*err}
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var docs []*Doc
	var errs []Error
	parts := chunks(data)
	if len(parts) > maxParts {
		return nil, []Error{{File: file,
			Msg: fmt.Sprintf("more than %d documents: split it into several files", maxParts)}}
	}
	for _, c := range parts {
		d, err := c.parse(file)
		docs = append(docs, d...)
		if err != nil {
			errs = append(errs, *err)
		}
	}
	return docs, errs
}

func checkText(size int, file string, data []byte) *Error {
	if len(data) > size {
		return &Error{File: file,
			Msg: fmt.Sprintf("larger than %d bytes: split it into several files", size)}
	}
	if utf8.Valid(data) {
		return nil
	}
	good := 0
	for good < len(data) {
		r, n := utf8.DecodeRune(data[good:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		good += n
	}
	line := 1 + bytes.Count(data[:good], []byte("\n"))
	return &Error{File: file, Line: line, Msg: "not UTF-8 text: save the file as UTF-8"}
}

// chunk is a part of a file between two "---" lines.
type chunk struct {
	data   []byte
	offset int
}

// chunks cuts data before every line that starts a document. YAML allows "---"
// at the start of a line for nothing else, not even inside a quoted text.
func chunks(data []byte) []chunk {
	var out []chunk
	start, startLine := 0, 0
	for pos, line := 0, 0; pos < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
			end = pos + i + 1
		}
		if pos > start && startsDocument(data[pos:end]) {
			out = append(out, chunk{data[start:pos], startLine})
			start, startLine = pos, line
		}
		pos = end
	}
	return append(out, chunk{data[start:], startLine})
}

func startsDocument(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

func (c chunk) parse(file string) ([]*Doc, *Error) {
	var docs []*Doc
	dec := yaml.NewDecoder(bytes.NewReader(c.data))
	for {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, c.syntaxError(file, err)
		}
		if len(n.Content) != 1 || isNull(n.Content[0]) {
			continue
		}
		docs = append(docs, &Doc{File: file, Root: n.Content[0], offset: c.offset})
	}
}

// Line is the line of the field, or of the nearest thing around it that the
// document has. Only known after Decode.
func (d *Doc) Line(field string) int {
	for field != "" {
		if n, ok := d.lines[field]; ok {
			return n
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return d.Root.Line + d.offset
}

// Has says whether the document gave a field, once it is decoded.
func (d *Doc) Has(field string) bool {
	_, ok := d.lines[field]
	return ok
}

// Text is the scalar at the top-level key, "" when there is none: for looking at
// what a document says it is before it is decoded.
func (d *Doc) Text(key string) string {
	n := resolve(d.Root)
	if n.Kind != yaml.MappingNode {
		return ""
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if v := resolve(n.Content[i+1]); n.Content[i].Value == key && v.Kind == yaml.ScalarNode {
			return v.Value
		}
	}
	return ""
}

func resolve(n *yaml.Node) *yaml.Node {
	// An alias of an alias does not exist in YAML, but costs nothing to bear.
	for i := 0; n.Kind == yaml.AliasNode && i < 8; i++ {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// Sort orders errors by file, line and field.
func Sort(errs []Error) {
	slices.SortStableFunc(errs, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Field, b.Field))
	})
}

// Covered is true when errs already has an error about the field, about what is
// around it or about what is inside it: a value that could not be read need not be
// refused a second time for what it then is.
func Covered(field string, errs []Error) bool {
	for _, e := range errs {
		if e.Field != "" && (within(e.Field, field) || within(field, e.Field)) {
			return true
		}
	}
	return false
}

// within is true when the field path is inner or something inside outer.
func within(inner, outer string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Items are the entries of the list at the top-level key as documents of their own, for objects
// that hold others.
func (d *Doc) Items(key string) []*Doc {
	n := resolve(d.Root)
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		list := resolve(n.Content[i+1])
		if n.Content[i].Value != key || list.Kind != yaml.SequenceNode {
			continue
		}
		var out []*Doc
		for _, item := range list.Content {
			out = append(out, &Doc{File: d.File, Root: item, offset: d.offset})
		}
		return out
	}
	return nil
}
