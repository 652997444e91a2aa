package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/bench/mesh"
	"weft.dev/weft/internal/bench/report"
)

func TestMeshSuite(t *testing.T) {
	want := []string{"max-0k", "max-1k", "max-10k", "max-100k", "rps1000-1k", "rps3200-1k"}
	if got := meshSuite(mesh.Tools{}).testNames(true); !slices.Equal(got, want) {
		t.Errorf("by default: %v", got)
	}
	if got := MeshGroups(); !slices.Equal(got, []string{"max", "rate", "all"}) {
		t.Errorf("groups: %v", got)
	}
	for _, v := range MeshVariants() {
		if meshView.Colours[v] == "" || meshView.Legends[v] == "" {
			t.Errorf("variant %s has no colour or legend", v)
		}
		s := meshSuite(mesh.Tools{})
		if uses := s.isWeft(v); uses != (v != VariantKernel && v != VariantEnvoy) {
			t.Errorf("variant %s needs a weft binary: %t", v, uses)
		}
	}
	for _, p := range meshView.Panels {
		for _, b := range p.Bars {
			if !slices.Contains(MeshTests(), b.Test) || report.FindMetric(b.Metric).Unit == "" {
				t.Errorf("panel %q shows %s/%s, which no test measures", p.Title, b.Test, b.Metric)
			}
		}
	}
}

// TestMeshSkipsEnvoyByName: without an Envoy its variant is left out by default, and refused if it
// is asked for.
func TestMeshSkipsEnvoyByName(t *testing.T) {
	for path, want := range map[string][]string{
		"":           {"kernel", "plain", "bpf", "user"},
		"/bin/envoy": {"kernel", "plain", "bpf", "user", "envoy"},
	} {
		if got := meshSuite(mesh.Tools{Envoy: path}).defaults(); !slices.Equal(got, want) {
			t.Errorf("with Envoy at %q: %v", path, got)
		}
	}
	// Programs of these names are enough to be found; the test they are asked for does not exist.
	dir := t.TempDir()
	for _, name := range []string{"h2load", "nghttpd"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	for _, c := range []struct {
		name     string
		variants []string
		out, err string
	}{
		{"by default", nil, "variant envoy skipped: envoy is not in PATH", "no-such-test"},
		{"asked for", []string{VariantEnvoy}, "", "envoy is not in PATH"},
		{"not asked for", []string{VariantKernel}, "", "no-such-test"},
	} {
		var out bytes.Buffer
		_, err := Mesh(t.Context(), Options{
			Variants: c.variants, Tests: []string{"no-such-test"}, Out: &out,
		})
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %v", c.name, err)
		}
		if said := out.String(); !strings.HasPrefix(said, c.out) || c.out == "" && said != "" {
			t.Errorf("%s: said %q", c.name, said)
		}
	}
}

// TestMeshRatios: rows are held against the sidecars and against the kernel, and failures against
// nobody.
func TestMeshRatios(t *testing.T) {
	r := &report.Report{View: meshView, Rows: []report.Row{
		row("max-1k", VariantKernel, "requests_s", "1/s", 4000, 4000, 4000, 1),
		row("max-1k", VariantEngineUser, "requests_s", "1/s", 2000, 2000, 2000, 1),
		row("max-1k", VariantEnvoy, "requests_s", "1/s", 1000, 1000, 1000, 1),
		row("max-1k", VariantEngineUser, "cpu_us_per_request", "µs", 54, 54, 54, 1),
		row("max-1k", VariantEnvoy, "cpu_us_per_request", "µs", 100, 100, 100, 1),
		row("max-1k", VariantEngineUser, "failures", "requests", 3, 3, 3, 1),
		row("max-1k", VariantEnvoy, "failures", "requests", 0, 0, 0, 1),
	}}
	var out bytes.Buffer
	if err := r.WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| requests_s [1/s] | × envoy | × kernel | cpu_us_per_request [µs] | × envoy | failures [requests] |",
		"| user | 2000 | 2.00 | 0.50 | 54.0 | 1.85 | 3.00 |",
		"| envoy | 1000 | 1.00 | 0.25 | 100 | 1.00 | 0 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

// TestMeshSmoke runs the bench for a moment: rows must be there and plausible, nothing is said
// about how fast anything is.
func TestMeshSmoke(t *testing.T) {
	needRoot(t)
	if _, err := mesh.FindTools(""); err != nil {
		t.Skipf("needs h2load and nghttpd: %v", err)
	}
	variants := []string{VariantKernel, VariantEngineUser}
	r, err := Mesh(t.Context(), Options{
		Binary: builtWeft(t), Variants: variants, Tests: []string{"max-1k"},
		Repeats: 1, Duration: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, variant := range variants {
		for _, metric := range []string{"requests_s", "p50_us", "p99_us", "cpu_us_per_request"} {
			if row, ok := r.Row("max-1k", variant, metric); !ok || row.Median <= 0 || row.N != 1 {
				t.Errorf("%s %s: %v (there: %t)", variant, metric, row, ok)
			}
		}
		if row, ok := r.Row("max-1k", variant, "failures"); !ok || row.Median != 0 {
			t.Errorf("%s: failures %v (there: %t)", variant, row.Median, ok)
		}
	}
}
