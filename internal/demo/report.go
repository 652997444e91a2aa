package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"weft.dev/weft/internal/bench/report"
)

// The files of a report.
const (
	jsonFile = "report.json"
	htmlFile = "report.html"
)

// Check is one thing that had to hold.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Route is what one variant of the benchmark reached, medians.
type Route struct {
	PPS64            float64 `json:"pps64"`
	NsPerPacket64    float64 `json:"ns_per_packet64"`
	NetNsPerPacket64 float64 `json:"net_ns_per_packet64"`
}

// Report is what report.json holds.
type Report struct {
	Checks []Check          `json:"checks"`
	Route  map[string]Route `json:"route"`
}

// OK says whether there were checks and all of them held.
func (r *Report) OK() bool { return len(r.Checks) > 0 && len(r.Failed()) == 0 }

// Failed are the checks that did not hold.
func (r *Report) Failed() []Check {
	return slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return c.OK })
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	whole := Report{Checks: r.Checks, Route: r.Route}
	if whole.Checks == nil {
		whole.Checks = []Check{}
	}
	if whole.Route == nil {
		whole.Route = map[string]Route{}
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(whole); err != nil {
		return fmt.Errorf("write report as JSON: %w", err)
	}
	return nil
}

// routeOf picks the report's figures from the benchmark's. A variant of which one is
// missing was not measured and is left out.
func routeOf(measured *report.Report) map[string]Route {
	route := map[string]Route{}
	for _, variant := range routeVariants {
		pps, ok1 := measured.Row("pps64", variant, "pps")
		gross, ok2 := measured.Row("pps64", variant, "ns_per_packet")
		net, ok3 := measured.Row("pps64", variant, "net_ns_per_packet")
		if ok1 && ok2 && ok3 {
			route[variant] = Route{math.Round(pps.Median), tenth(gross.Median), tenth(net.Median)}
		}
	}
	return route
}

func tenth(v float64) float64 { return math.Round(v*10) / 10 }

// prepareDir makes the directory and removes an older run's report: what lies there
// afterwards is this run's.
func prepareDir(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the report's directory: %w", err)
	}
	for _, name := range []string{jsonFile, htmlFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an older report: %w", err)
		}
	}
	return nil
}

// writeReports writes both files.
func writeReports(dir string, report *Report, p *page) error {
	if dir == "" {
		return nil
	}
	return errors.Join(
		writeFile(filepath.Join(dir, jsonFile), report.WriteJSON),
		writeFile(filepath.Join(dir, htmlFile), p.write),
	)
}

// writeFile writes a file whole or not at all.
func writeFile(path string, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer func() {
		if err != nil {
			file.Close()
			os.Remove(file.Name())
		}
	}()
	if err := write(file); err != nil {
		return err
	}
	if err := errors.Join(file.Chmod(0o644), file.Close()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
