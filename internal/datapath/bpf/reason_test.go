package bpf

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestReasons(t *testing.T) {
	header, err := os.ReadFile("../../../bpf/lib/reasons.h")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../../docs/drop-reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^\tX\(([A-Z0-9_]+),`).FindAllStringSubmatch(string(header), -1)
	if len(names) != len(reasonTable) || len(Reasons()) != len(names)-1 {
		t.Fatalf("%d reasons in C, %d in Go, %d listed: run make generate", len(names),
			len(reasonTable), len(Reasons()))
	}
	label := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	for _, r := range Reasons() {
		if r.String() != strings.ToLower(names[r][1]) || !label.MatchString(r.String()) ||
			r.Text() == "" || r.Hint() == "" {
			t.Errorf("reason %d: %q, %q, %q; C has %s", r, r.String(), r.Text(), r.Hint(),
				names[r][1])
		}
		if !strings.Contains(string(doc), r.String()) || !strings.Contains(string(doc), r.Text()) {
			t.Errorf("docs/drop-reasons.md lacks %s: run make generate", r)
		}
	}
	if unknown := Reason(200); unknown.String() != "reason_200" || unknown.Text() == "" ||
		unknown.Hint() != "" {
		t.Errorf("unknown reason: %q, %q, %q", unknown.String(), unknown.Text(), unknown.Hint())
	}
}
