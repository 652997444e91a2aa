package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"weft.dev/weft/api/v1alpha1"
)

func singular(kind string) string { return strings.ToLower(kind) }

// comments are those of types' fields, by TYPE.FIELD, and of types.
type comments map[string]string

// readComments reads the Go files of a directory, without its tests.
func readComments(dir string) (comments, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	out := comments{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.GenDecl); ok && len(spec.Specs) == 1 {
				out.declaration(spec)
			}
			return true
		})
	}
	return out, nil
}

func (c comments) declaration(decl *ast.GenDecl) {
	spec, ok := decl.Specs[0].(*ast.TypeSpec)
	if !ok {
		return
	}
	c[spec.Name.Name] = oneLine(decl.Doc)
	fields, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range fields.Fields.List {
		for _, name := range field.Names {
			c[spec.Name.Name+"."+name.Name] = oneLine(field.Doc)
		}
	}
}

func oneLine(doc *ast.CommentGroup) string { return strings.Join(strings.Fields(doc.Text()), " ") }

// Bounds that keep the API server's estimate of what rules cost in limits. What is within them is
// judged in full by whoever reads it.
const (
	maxText  = 2048
	maxItems = 256
)

// object is the schema of a kind. Its metadata is the API server's.
func (c comments) object(o v1alpha1.Object) apiextensions.JSONSchemaProps {
	t := reflect.TypeOf(o).Elem()
	out := apiextensions.JSONSchemaProps{Type: "object", Description: c[t.Name()],
		Required: []string{"spec"}, Properties: map[string]apiextensions.JSONSchemaProps{
			"apiVersion": {Type: "string"}, "kind": {Type: "string"}, "metadata": {Type: "object"}}}
	for _, name := range []string{"Spec", "Status"} {
		if field, ok := t.FieldByName(name); ok {
			out.Properties[strings.ToLower(name)] = c.of(field.Type)
		}
	}
	return out
}

// scalars are types that are texts in JSON, whatever they are in Go.
var scalars = map[reflect.Type]apiextensions.JSONSchemaProps{
	reflect.TypeFor[netip.Addr]():      {Type: "string", MaxLength: new(int64(45))},
	reflect.TypeFor[netip.Prefix]():    {Type: "string", MaxLength: new(int64(49))},
	reflect.TypeFor[v1alpha1.Time]():   {Type: "string", Format: "date-time", MaxLength: new(int64(64))},
	reflect.TypeFor[v1alpha1.Base64](): {Type: "string", Format: "byte", MaxLength: new(int64(32 << 10))},
}

// of is the schema of a type.
func (c comments) of(t reflect.Type) apiextensions.JSONSchemaProps {
	if s, ok := scalars[t]; ok {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return c.of(t.Elem())
	case reflect.String:
		return apiextensions.JSONSchemaProps{Type: "string", MaxLength: new(int64(maxText))}
	case reflect.Uint16:
		return number(1<<16 - 1)
	case reflect.Uint32:
		return number(1<<32 - 1)
	case reflect.Uint64:
		return number(1 << 53)
	case reflect.Slice:
		items := c.of(t.Elem())
		return apiextensions.JSONSchemaProps{Type: "array", MaxItems: new(int64(maxItems)),
			Items: &apiextensions.JSONSchemaPropsOrArray{Schema: &items}}
	case reflect.Map:
		values := c.of(t.Elem())
		return apiextensions.JSONSchemaProps{Type: "object", MaxProperties: new(int64(maxItems)),
			AdditionalProperties: &apiextensions.JSONSchemaPropsOrBool{Allows: true,
				Schema: &values}}
	case reflect.Struct:
		return c.structure(t)
	}
	panic(fmt.Sprintf("%v has no schema", t))
}

func number(most float64) apiextensions.JSONSchemaProps {
	return apiextensions.JSONSchemaProps{Type: "integer", Format: "int64", Minimum: new(float64),
		Maximum: &most}
}

func (c comments) structure(t reflect.Type) apiextensions.JSONSchemaProps {
	out := apiextensions.JSONSchemaProps{Type: "object", Description: c[t.Name()],
		Properties: map[string]apiextensions.JSONSchemaProps{}}
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		schema := c.of(field.Type)
		if doc := c[t.Name()+"."+field.Name]; doc != "" {
			schema.Description = doc
		}
		out.Properties[name] = schema
		if options != "omitempty" {
			out.Required = append(out.Required, name)
		}
	}
	return out
}
