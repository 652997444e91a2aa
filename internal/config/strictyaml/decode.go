package strictyaml

import (
	"encoding"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Decode fills out, a pointer to a struct with yaml tags, and keeps what out
// holds where the document says nothing (or null). Structs, slices, pointers, maps with
// text keys, texts, booleans, integers, encoding.TextUnmarshaler and json.Unmarshaler are known; a
// map of any takes a mapping as it is.
func (d *Doc) Decode(out any) []Error {
	d.lines = map[string]int{}
	v := reflect.ValueOf(out).Elem()
	dec := &decoder{doc: d, root: v.Type()}
	dec.value(d.Root, v, "")
	return dec.errs
}

type decoder struct {
	doc  *Doc
	root reflect.Type
	errs []Error
}

func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	if len(d.errs) > maxErrors {
		return
	}
	if len(d.errs) == maxErrors {
		path, format, args = "", "more errors are not shown: correct these first", nil
	}
	d.errs = append(d.errs, Error{
		File: d.doc.File, Line: n.Line + d.doc.offset, Field: path,
		Msg: fmt.Sprintf(format, args...),
	})
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if path != "" {
		d.doc.lines[path] = n.Line + d.doc.offset
	}
	// The place where an alias stands is reported, not the place it stands for.
	at := n
	n = resolve(n)
	if isNull(n) {
		return
	}
	if v.Kind() == reflect.Pointer {
		// What may be absent, which is not the same as empty.
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if v.Addr().Type().Implements(textUnmarshaler) {
		d.text(at, n, v, path)
		return
	}
	if own, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		d.json(at, n, own, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(at, n, v, path)
	case reflect.Map:
		if v.Type().Elem().Kind() == reflect.Interface {
			d.untyped(at, n, v, path)
			return
		}
		d.mapping(at, n, v, path)
	case reflect.Slice:
		d.slice(at, n, v, path)
	default:
		d.scalar(at, n, v, path)
	}
}

func (d *decoder) text(at, n *yaml.Node, v reflect.Value, path string) {
	want := wanted(v.Type())
	if n.Kind != yaml.ScalarNode {
		d.fail(at, path, "is %s: want %s", describe(n), want)
		return
	}
	if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Value)); err != nil || n.Value == "" {
		d.fail(at, path, "%s is not %s", show(n.Value), want)
	}
}

// json has a value read itself that is written as JSON elsewhere, such as Kubernetes' ports, which
// are numbers or names.
func (d *decoder) json(at, n *yaml.Node, into json.Unmarshaler, path string) {
	var value any = n.Value
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!int" || n.ShortTag() == "!!bool" ||
		n.ShortTag() == "!!float" {
		if err := n.Decode(&value); err != nil {
			d.fail(at, path, "cannot be read: %s", strings.TrimPrefix(err.Error(), "yaml: "))
			return
		}
	}
	text, err := json.Marshal(value)
	if err == nil {
		err = into.UnmarshalJSON(text)
	}
	if err != nil {
		d.fail(at, path, "is %s, which it cannot be: %s", describe(n),
			strings.TrimPrefix(err.Error(), "json: "))
	}
}

func (d *decoder) slice(at, n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.fail(at, path, "is %s: want a list, such as [a, b]", describe(n))
		return
	}
	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		p := fmt.Sprintf("%s[%d]", path, i)
		if isNull(resolve(item)) {
			d.doc.lines[p] = item.Line + d.doc.offset
			d.fail(item, p, "is empty: give %s or take the entry away", wanted(v.Type().Elem()))
			continue
		}
		d.value(item, s.Index(i), p)
	}
	v.Set(s)
}

func (d *decoder) mapping(at, n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(at, path, "is %s: want keys with values", describe(n))
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.Content)/2)
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, ok := d.key(n.Content[i], path, seen)
		if !ok {
			continue
		}
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(n.Content[i+1], item, path+"["+plain(key)+"]")
		m.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), item)
	}
	v.Set(m)
}

// untyped reads a mapping of any shape, for somebody else to check.
func (d *decoder) untyped(at, n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(at, path, "is %s: want keys with values", describe(n))
		return
	}
	if err := n.Decode(v.Addr().Interface()); err != nil {
		d.fail(at, path, "want keys with values: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
}

func (d *decoder) structure(at, n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(at, path, "is %s: want keys with values, such as %s: …", describe(n),
			keys(v.Type())[0])
		return
	}
	fields := fieldsOf(v.Type())
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		kn := n.Content[i]
		key, ok := d.key(kn, path, seen)
		if !ok {
			continue
		}
		index, known := fields[key]
		if !known {
			d.fail(kn, join(path, plain(key)), "unknown key%s", d.hint(key, path, v.Type()))
			continue
		}
		d.value(n.Content[i+1], v.FieldByIndex(index), join(path, key))
	}
}

// key reads a mapping's key and refuses one that was there before.
func (d *decoder) key(n *yaml.Node, path string, seen map[string]int) (string, bool) {
	if n.ShortTag() == "!!merge" {
		d.fail(n, path, "merge keys (<<) are not supported: write the keys out")
		return "", false
	}
	k := resolve(n)
	if k.Kind != yaml.ScalarNode {
		d.fail(n, path, "has %s for a key: want a text", describe(k))
		return "", false
	}
	if first, ok := seen[k.Value]; ok {
		d.fail(n, join(path, plain(k.Value)), "is given twice, first on line %d: keep one", first)
		return "", false
	}
	seen[k.Value] = n.Line + d.doc.offset
	return k.Value, true
}

// hint says what an unknown key may have been meant to be.
func (d *decoder) hint(key, path string, t reflect.Type) string {
	known := keys(t)
	if near := Nearest(key, known); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	for _, p := range allPaths(d.root, "") {
		if p[strings.LastIndexByte(p, '.')+1:] == key {
			return fmt.Sprintf(": it belongs to another place, %s", p)
		}
	}
	where := "here"
	if path != "" {
		where = "under " + path
	}
	return fmt.Sprintf(": known %s are %s", where, strings.Join(known, ", "))
}

func (d *decoder) scalar(at, n *yaml.Node, v reflect.Value, path string) {
	want := wanted(v.Type())
	if n.Kind != yaml.ScalarNode {
		d.fail(at, path, "is %s: want %s", describe(n), want)
		return
	}
	switch v.Kind() {
	case reflect.String:
		if n.ShortTag() != "!!str" {
			d.fail(at, path, "is %s: want a text; in quotes it is one: %q", describe(n), n.Value)
			return
		}
		v.SetString(n.Value)
	case reflect.Bool:
		b, err := strconv.ParseBool(strings.ToLower(n.Value))
		if n.ShortTag() != "!!bool" || err != nil {
			d.fail(at, path, "is %s: want true or false", describe(n))
			return
		}
		v.SetBool(b)
	default:
		d.integer(at, n, v, path)
	}
}

func (d *decoder) integer(at, n *yaml.Node, v reflect.Value, path string) {
	want := wanted(v.Type())
	if n.ShortTag() != "!!int" {
		d.fail(at, path, "is %s: want %s", describe(n), want)
		return
	}
	text := strings.ReplaceAll(n.Value, "_", "")
	if v.CanUint() {
		u, err := strconv.ParseUint(strings.TrimPrefix(text, "+"), 0, v.Type().Bits())
		if err != nil {
			d.fail(at, path, "%s is out of range: want %s", show(n.Value), want)
			return
		}
		v.SetUint(u)
		return
	}
	i, err := strconv.ParseInt(text, 0, v.Type().Bits())
	if err != nil {
		d.fail(at, path, "%s is out of range: want %s", show(n.Value), want)
		return
	}
	v.SetInt(i)
}

// wanted describes in words what a value of the type looks like.
func wanted(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[netip.Addr]():
		return "an IP address, such as 10.0.0.1 or fd00::1"
	case reflect.TypeFor[netip.Prefix]():
		return "an address range or an address with prefix length, such as 10.1.0.0/24 or fd00:1::/64"
	case reflect.TypeFor[netip.AddrPort]():
		return "an address with port, such as 10.0.0.1:80 or [fd00::1]:80"
	}
	if own, ok := reflect.Zero(t).Interface().(interface{ Wanted() string }); ok {
		return own.Wanted()
	}
	switch t.Kind() {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(1)<<t.Bits()-1)
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "keys with values"
	}
	return "a " + t.String()
}

// describe says in words what a node is.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!str":
		return "the text " + show(n.Value)
	case "!!int", "!!float":
		return "the number " + show(n.Value)
	case "!!bool":
		return "the boolean " + show(n.Value)
	case "!!timestamp":
		return "the date " + show(n.Value)
	}
	return show(n.Value)
}

const maxShown = 80

// show quotes a value for a message, without its tail when it is long.
func show(s string) string {
	if len(s) > maxShown {
		s = strings.ToValidUTF8(s[:maxShown], "") + "…"
	}
	return strconv.Quote(s)
}

// plain is a key inside a field path: as it is when that is readable.
func plain(key string) string {
	q := show(key)
	if q == `"`+key+`"` && key != "" {
		return key
	}
	return q
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
