package output

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

type sample struct {
	Name    string            `json:"name"`
	Port    int               `json:"port"`
	Big     uint64            `json:"big"`
	Labels  map[string]string `json:"labels"`
	Addrs   []string          `json:"addrs"`
	Nothing []string          `json:"nothing"`
	Hidden  string            `json:"-"`
	Empty   string            `json:"empty,omitempty"`
}

var value = sample{
	Name: "true", Port: 80, Big: 1<<63 + 1, Hidden: "no",
	Labels: map[string]string{"a": "1.0", "text": "a: b\nc"}, Addrs: []string{"fe80::1", "null"},
}

func print(t *testing.T, format Format) string {
	t.Helper()
	var buffer bytes.Buffer
	err := Print(&buffer, format, value, func(w io.Writer, wide bool) error {
		rows := Rows{Header: []string{"NAME", "PORT", "MORE"}, WideFrom: 2}
		rows.Add("web", "80", "detail")
		return rows.Write(w, wide)
	})
	if err != nil {
		t.Fatal(err)
	}
	return buffer.String()
}

func TestYAMLKeepsTypesAndOrder(t *testing.T) {
	text := print(t, YAML)
	if strings.ContainsAny(strings.SplitN(text, "nothing", 2)[0], "{") {
		t.Errorf("flow style left in:\n%s", text)
	}
	if !strings.HasPrefix(text, "name: \"true\"\nport: 80\nbig: 9223372036854775809\n") {
		t.Errorf("order or types changed:\n%s", text)
	}
	var back map[string]any
	if err := yaml.Unmarshal([]byte(text), &back); err != nil {
		t.Fatal(err)
	}
	labels := back["labels"].(map[string]any)
	if labels["a"] != "1.0" || labels["text"] != "a: b\nc" || back["addrs"].([]any)[1] != "null" {
		t.Errorf("read back %v", back)
	}
	if strings.Contains(text, "empty") || strings.Contains(text, "Hidden") {
		t.Errorf("tags ignored:\n%s", text)
	}
}

func TestTable(t *testing.T) {
	if got := print(t, Table); got != "NAME  PORT\nweb   80\n" {
		t.Errorf("table %q", got)
	}
	if got := print(t, Wide); got != "NAME  PORT  MORE\nweb   80    detail\n" {
		t.Errorf("wide %q", got)
	}
	var buffer bytes.Buffer
	empty := Rows{Header: []string{"NAME"}, Empty: "no endpoints"}
	if err := empty.Write(&buffer, false); err != nil || buffer.String() != "no endpoints\n" {
		t.Errorf("empty %q %v", buffer.String(), err)
	}
}

func TestParse(t *testing.T) {
	if _, err := Parse("xml"); err == nil ||
		!strings.Contains(err.Error(), "table, wide, json, yaml") {
		t.Errorf("error %v", err)
	}
	if format, err := Parse("yaml"); err != nil || format != YAML {
		t.Errorf("%v %v", format, err)
	}
}
