package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/bench"
	"weft.dev/weft/internal/bench/report"
)

func measured(variants ...string) *report.Report {
	r := &report.Report{Machine: report.Machine{CPU: "test", Cores: 2, Repeats: 3, Seconds: 1}}
	for i, v := range variants {
		f := float64(i + 1)
		r.Rows = append(r.Rows,
			report.Row{Test: "pps64", Variant: v, Metric: "pps", Unit: "packets/s",
				Median: 500000.4 * f, Min: 400000, Max: 600000 * f, N: 3},
			report.Row{Test: "pps64", Variant: v, Metric: "ns_per_packet", Unit: "ns",
				Median: 2000.123 / f, Min: 1, Max: 3000, N: 3},
			report.Row{Test: "pps64", Variant: v, Metric: "net_ns_per_packet", Unit: "ns",
				Median: 1600.987 / f, Min: 1, Max: 3000, N: 3})
	}
	return r
}

func TestRouteOf(t *testing.T) {
	r := measured(bench.VariantIPTables, bench.VariantXDP, bench.VariantPlain)
	// Without its packet rate a variant was not measured.
	r.Rows = append(r.Rows,
		report.Row{Test: "pps64", Variant: bench.VariantTC, Metric: "ns_per_packet", Median: 1})
	want := map[string]Route{
		"iptables": {500000, 2000.1, 1601},
		"xdp":      {1000001, 1000.1, 800.5},
	}
	if diff := cmp.Diff(want, routeOf(r)); diff != "" {
		t.Error(diff)
	}
}

func TestReportJSONHasExactlyTheAgreedFields(t *testing.T) {
	report := &Report{
		Checks: []Check{{"lab", true, "a < b"}, {"reach", false, "no"}},
		Route:  map[string]Route{"xdp": {1, 2, 3}},
	}
	var out bytes.Buffer
	if err := report.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"checks": []any{
			map[string]any{"name": "lab", "ok": true, "detail": "a < b"},
			map[string]any{"name": "reach", "ok": false, "detail": "no"},
		},
		"route": map[string]any{"xdp": map[string]any{"pps64": 1.0, "ns_per_packet64": 2.0,
			"net_ns_per_packet64": 3.0}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEmptyReportJSON(t *testing.T) {
	var out bytes.Buffer
	if err := (&Report{}).WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(out.String()), ""); got != `{"checks":[],"route":{}}` {
		t.Errorf("got %s", got)
	}
}

func TestReportOK(t *testing.T) {
	for _, test := range []struct {
		name   string
		checks []Check
		want   bool
	}{
		{"nothing was checked", nil, false},
		{"all held", []Check{{"a", true, ""}, {"b", true, ""}}, true},
		{"one failed", []Check{{"a", true, ""}, {"b", false, ""}}, false},
	} {
		if got := (&Report{Checks: test.checks}).OK(); got != test.want {
			t.Errorf("%s: OK is %t", test.name, got)
		}
	}
}

// told is a demo that has something of everything to tell.
func told() *demo {
	d := &demo{story: newStory(io.Discard), opts: Options{Lab: "test"}}
	d.section("First <b>chapter</b>")
	d.say("A paragraph with `code <i>` in it.")
	m := &labMap{
		Nodes: []mapNode{
			{"a", []string{"192.0.2.1"}, []mapPod{{"shop/client", "10.0.0.1", "fd00::1"}}},
			{"b", []string{"192.0.2.2", "2001:db8::2"}, nil},
		},
		Wires: []string{"wire w0, MTU 1500"},
	}
	d.add(block{Map: m})
	d.show("weft status", "<script>alert(1)</script>\n")
	d.showTable(&table{Header: []string{"FROM", "TO"},
		Rows: [][]string{{"<x>", "ok 14/14"}, {"y", "FAILED 1/14"}}, Left: 1})
	d.dump([]byte("14 bytes hidden<secret & more>"))
	d.check("good-one", true, "fine & well")
	d.check("bad-one", false, "two\nlines %d", 2)
	d.fact("0 of 10", "lost")
	d.add(block{SVG: timeline([]line{{"UDP IPv4", []point{{0.1, 1000}, {0.2, 900}}}},
		outage{gone: 0.1, ready: 0.2})})
	return d
}

func TestPage(t *testing.T) {
	d := told()
	report := &Report{Checks: d.checks}
	var out bytes.Buffer
	if err := d.page(report, time.Unix(1e9, 0)).write(&out); err != nil {
		t.Fatal(err)
	}
	html := out.String()
	for _, want := range []string{
		"First &lt;b&gt;chapter&lt;/b&gt;", "<code>code &lt;i&gt;</code>",
		"&lt;script&gt;alert(1)&lt;/script&gt;",
		"<pre>00000000", "|n&lt;secret &amp; more", "<b>good-one</b><span>fine &amp; well</span>",
		"1 of 2 checks are ok", "two lines 2", "<svg ", "<polyline ", "node b", "9 September 2001",
		`class="good">ok 14/14`, `class="bad">FAILED 1/14`,
	} {
		if !strings.Contains(html, want) {
			t.Errorf("page lacks %q", want)
		}
	}
	for _, not := range []string{"<script", "<i>", "src=", "href=", "@import", "url("} {
		if strings.Contains(html, not) {
			t.Errorf("page has %q: it must be self-contained and escaped", not)
		}
	}
}

func TestWriteReports(t *testing.T) {
	d := told()
	report := &Report{Checks: d.checks, Route: routeOf(measured(bench.VariantXDP))}
	dir := filepath.Join(t.TempDir(), "build", "demo")
	if err := prepareDir(dir); err != nil {
		t.Fatal(err)
	}
	if err := writeReports(dir, report, d.page(report, time.Now())); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"report.html", "report.json"}) {
		t.Errorf("directory holds %v", got)
	}
	// A second run must not leave the first one's report lying when it fails.
	if err := prepareDir(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("an older report is still there: %v", got)
	}
	broken := errors.New("broken")
	if err := writeFile(filepath.Join(dir, "x"),
		func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("a failed write left %v", got)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
