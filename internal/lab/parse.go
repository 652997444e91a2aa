package lab

import (
	"weft.dev/weft/internal/config/strictyaml"
)

// Examples shown in messages about addresses.
const (
	exampleAddress = "192.0.2.1/24 or 2001:db8::1/64"
	exampleRange   = "10.77.1.0/24 or fd77:1::/64"
)

// parse decodes, fills in defaults and validates. What could not be decoded is told alone: checks
// of what is left would tell of names and nodes that are missing only because of it.
func parse(name string, data []byte) (*Spec, error) {
	docs, errs := strictyaml.Split(name, data)
	spec := &Spec{}
	switch {
	case len(errs) > 0:
	case len(docs) == 0:
		errs = []strictyaml.Error{{
			File: name, Msg: "is empty: at least name, nodes and wires are needed, see examples/lab.yaml",
		}}
	case len(docs) > 1:
		errs = []strictyaml.Error{{
			File: name, Line: docs[1].Line(""),
			Msg: "holds more than one YAML document: keep one lab per file",
		}}
	default:
		errs = docs[0].Decode(spec)
	}
	if len(errs) > 0 {
		return nil, strictyaml.Join(errs)
	}
	spec.setDefaults()
	if err := validate(spec, name, docs[0].Line); err != nil {
		return nil, err
	}
	return spec, nil
}
