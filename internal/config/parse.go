package config

import (
	_ "embed" // for example.yaml
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"weft.dev/weft/internal/config/strictyaml"
)

//go:embed example.yaml
var example []byte

// Error is one thing that is wrong with a configuration file. errors.As finds it
// in what Load and Parse return.
type Error = strictyaml.Error

// Example is a commented configuration of all defaults, with a node name filled in.
func Example() []byte { return append([]byte(nil), example...) }

// Load reads and checks the configuration file at path.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read config: %w: write one, beginning with what `weft config example` prints", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	return Parse(path, data)
}

// read reads one byte more than is allowed at most, for Parse to refuse.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, strictyaml.MaxSize+1))
}

// Parse checks the configuration in data; name is the file's name in errors. It
// returns everything that is wrong at once: each line of the error is
// "file:line: field: what is wrong and what to do".
func Parse(name string, data []byte) (*Config, error) {
	c := Default()
	docs, errs := strictyaml.Split(name, data)
	if len(errs) > 0 {
		return nil, strictyaml.Join(errs)
	}
	if len(docs) > 1 {
		return nil, Error{File: name, Line: docs[1].Line(""),
			Msg: "a second document begins here: a configuration is one document"}
	}
	line := func(string) int { return 0 }
	if len(docs) == 1 {
		errs = docs[0].Decode(c)
		line = docs[0].Line
		if c.Store.Remote() && !docs[0].Has("store.dir") {
			c.Store.Dir = "" // its default is for those without either
		}
	}
	for _, p := range c.Validate() {
		if !strictyaml.Covered(p.Field, errs) {
			errs = append(errs, Error{File: name, Line: line(p.Field), Field: p.Field, Msg: p.Msg})
		}
	}
	if len(errs) > 0 {
		strictyaml.Sort(errs)
		return nil, strictyaml.Join(errs)
	}
	return c, nil
}

func oneOf(field, value string, known ...string) []Problem {
	for _, k := range known {
		if value == k {
			return nil
		}
	}
	hint := ""
	if near := strictyaml.Nearest(value, known); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	last := len(known) - 1
	return problem(field, "is %q: want %s or %s%s", value, strings.Join(known[:last], ", "),
		known[last], hint)
}
