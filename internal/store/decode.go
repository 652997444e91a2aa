package store

import (
	"fmt"
	"strings"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config/strictyaml"
	"weft.dev/weft/internal/policy"
)

// Declared is a good object and where it was declared.
type Declared struct {
	Object v1alpha1.Object
	File   string
	Line   int

	lineOf func(field string) int
}

// maxErrors bounds the errors reported for one file.
const maxErrors = 200

// Decode reads the objects of one YAML file with any number of documents. It
// returns the good ones, defaults filled in, and what is wrong with the others.
func Decode(file string, data []byte) ([]Declared, []ObjectError) {
	docs, problems := strictyaml.Split(file, data)
	var out []Declared
	for _, d := range docs {
		o, errs := decodeDoc(d)
		problems = append(problems, errs...)
		// A policy with mistakes is one that denies.
		if _, isPolicy := o.(*policy.Policy); len(errs) == 0 || isPolicy {
			out = append(out, Declared{Object: o, File: file, Line: d.Line(""), lineOf: d.Line})
		}
	}
	var errs []ObjectError
	for _, p := range problems {
		errs = append(errs, ObjectError(p))
	}
	sortErrors(errs)
	if n := len(errs) - maxErrors; n > 0 {
		errs = append(errs[:maxErrors:maxErrors], ObjectError{
			File: file, Line: errs[maxErrors].Line,
			Msg: fmt.Sprintf("%d more errors from here on are not shown: correct the others first",
				n),
		})
	}
	return out, errs
}

func decodeDoc(d *strictyaml.Doc) (v1alpha1.Object, []strictyaml.Error) {
	if o, errs := policy.DecodeObject(d); o != nil {
		return o, errs
	}
	kind, version := d.Text("kind"), d.Text("apiVersion")
	o := v1alpha1.New(kind)
	if o == nil || version != v1alpha1.VersionOf(kind) {
		return nil, unknownType(d, version, kind)
	}
	errs := d.Decode(o)
	o.SetDefaults()
	for _, f := range o.Validate() {
		if !strictyaml.Covered(f.Field, errs) {
			errs = append(errs,
				strictyaml.Error{File: d.File, Line: d.Line(f.Field), Field: f.Field, Msg: f.Msg})
		}
	}
	return o, errs
}

// unknownType says why a document is none of our objects. Nothing else in it can
// be checked.
func unknownType(d *strictyaml.Doc, version, kind string) []strictyaml.Error {
	var head struct {
		v1alpha1.TypeMeta `yaml:",inline"`
	}
	d.Decode(&head) // for the lines, and for what the two are if they are no texts
	fail := func(field, format string, args ...any) []strictyaml.Error {
		return []strictyaml.Error{{File: d.File, Line: d.Line(field), Field: field,
			Msg: fmt.Sprintf(format, args...)}}
	}
	want := v1alpha1.VersionOf(kind)
	if version == "" {
		return fail("apiVersion", "is missing: want %s", want)
	}
	if version != want {
		return fail("apiVersion", "is %s: want %s", short(version), want)
	}
	kinds := v1alpha1.Kinds()
	want = strings.Join(kinds[:len(kinds)-1], ", ") + " or " + kinds[len(kinds)-1]
	if kind == "" {
		return fail("kind", "is missing: want %s", want)
	}
	hint := ""
	if near := strictyaml.Nearest(kind, kinds); near != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", near)
	}
	return fail("kind", "is %s: want %s%s", short(kind), want, hint)
}

func short(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}
