package policy

import (
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/config/strictyaml"
)

// Problem says what is wrong with an object, where, and what to do.
type Problem struct {
	File string `json:"file,omitempty"`
	// Line is 1-based; 0 when it is not known.
	Line int `json:"line,omitempty"`
	// Object is kind and name, such as NetworkPolicy shop/web, of several with ", " between; ""
	// when it is about none.
	Object string `json:"object,omitempty"`
	// Field is the dotted path inside the object.
	Field string `json:"field,omitempty"`
	Msg   string `json:"msg"`
	// Warning is what is in force as it is written, and perhaps not as it was meant.
	Warning bool `json:"warning,omitempty"`
}

// Error is "file:line: object: field: msg", without the parts that are not known.
func (p Problem) Error() string {
	s := p.File
	if s != "" && p.Line > 0 {
		s += ":" + strconv.Itoa(p.Line)
	}
	for _, part := range []string{p.Object, p.Field} {
		if part != "" {
			if s != "" {
				s += ": "
			}
			s += part
		}
	}
	if s != "" {
		s += ": "
	}
	if p.Warning {
		s += "warning: "
	}
	return s + p.Msg
}

// about says whether an object, by kind and name, is one that the problem is about.
func (p Problem) about(object string) bool {
	return slices.Contains(strings.Split(p.Object, ", "), object)
}

// specKey is the key of spec that the problem is in, if it is in one.
func (p Problem) specKey() (key string, inSpec bool) {
	path, inSpec := strings.CutPrefix(p.Field, "spec.")
	if end := strings.IndexAny(path, ".["); end >= 0 {
		path = path[:end]
	}
	return path, inSpec
}

func problemOf(e strictyaml.Error, object string) Problem {
	return Problem{File: e.File, Line: e.Line, Object: object, Field: e.Field, Msg: e.Msg}
}
