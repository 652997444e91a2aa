package strictyaml

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

// syntaxError takes the line out of the parser's text, which counts from the
// start of the chunk.
func (c chunk) syntaxError(file string, err error) *Error {
	e := &Error{File: file, Line: c.offset + 1}
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		n, _ := strconv.Atoi(m[1])
		e.Line = c.offset + n
		msg = strings.TrimPrefix(err.Error(), m[0])
	}
	if strings.HasPrefix(msg, "did not find expected ") {
		e.Line = c.offset + c.locate(msg)
	}
	e.Msg = "not valid YAML: " + msg
	return e
}

// locate is the line at which the parser says msg. For what it did not find the
// library names the line before the one on which the surrounding mapping or list
// begins; but the first lines of a file that are enough to make it say so end
// with the right one.
func (c chunk) locate(msg string) int {
	lines := bytes.SplitAfter(c.data, []byte("\n"))
	k := sort.Search(len(lines), func(k int) bool {
		err := parseAll(bytes.Join(lines[:k+1], nil))
		return err != nil && strings.HasSuffix(err.Error(), msg)
	})
	return min(k+1, len(lines))
}

func parseAll(data []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var n yaml.Node
		if err := dec.Decode(&n); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
