package strictyaml

import (
	"encoding"
	"reflect"
	"strings"
)

// fieldsOf is the index of each field of a struct by its key, with inlined
// structs' fields among them.
func fieldsOf(t reflect.Type) map[string][]int {
	out := map[string][]int{}
	eachField(t, nil, func(key string, index []int) { out[key] = index })
	return out
}

// keys is a struct's keys in the order of their declaration.
func keys(t reflect.Type) []string {
	var out []string
	eachField(t, nil, func(key string, _ []int) { out = append(out, key) })
	return out
}

// eachField goes by yaml tags and, where a field has none, by its json tag: Kubernetes' types have
// those.
func eachField(t reflect.Type, prefix []int, f func(key string, index []int)) {
	for i := range t.NumField() {
		sf := t.Field(i)
		tag, ours := sf.Tag.Lookup("yaml")
		if !ours {
			tag = sf.Tag.Get("json")
		}
		key, opts, _ := strings.Cut(tag, ",")
		index := append(append([]int(nil), prefix...), i)
		switch {
		case opts == "inline":
			eachField(sf.Type, index, f)
		case key != "" && key != "-" && sf.IsExported():
			f(key, index)
		}
	}
}

// Keys is the dotted path of every key that a document for v, a pointer to a
// struct, can have: for checks that a documentation is whole.
func Keys(v any) []string { return allPaths(reflect.TypeOf(v).Elem(), "") }

func allPaths(t reflect.Type, prefix string) []string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct ||
		reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return []string{prefix}
	}
	var out []string
	eachField(t, nil, func(key string, index []int) {
		out = append(out, allPaths(t.FieldByIndex(index).Type, join(prefix, key))...)
	})
	return out
}
