// Command compare sets the reports of two builds of Weft beside each other: what a change costs or
// saves. The reports come from runs in turns, one repeat each (scripts/compare-bench), since a lone
// run says nothing on a shared machine.
//
//	go run ./bench/compare [-rename xdp=auto-xdp] [-json FILE] DIRECTORY
//
// The directory holds before-N.json and after-N.json, a pair for each N.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weft.dev/weft/internal/bench/report"
)

// Side is what one build measured in one row, over all of its runs.
type Side struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// Row is one metric of one test and variant.
type Row struct {
	Test    string `json:"test"`
	Variant string `json:"variant"`
	Metric  string `json:"metric"`
	Unit    string `json:"unit"`
	Before  Side   `json:"before"`
	After   Side   `json:"after"`
	// Ratio is the median of after/before of the runs that followed each other.
	Ratio float64 `json:"ratio"`
	// Low and High are the quartiles of these ratios.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Comparison is the file that is kept in bench/results.
type Comparison struct {
	Before report.Machine `json:"before"`
	After  report.Machine `json:"after"`
	Rows   []Row          `json:"rows"`
}

func main() {
	rename := flag.String("rename", "",
		"variants of the build before that have another name after, `OLD=NEW,...`")
	out := flag.String("json", "", "also write the comparison to this `file`")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: compare [-rename OLD=NEW,...] [-json FILE] DIRECTORY")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *rename, *out); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(dir, rename, out string) error {
	old, now, err := readPairs(dir)
	if err != nil {
		return err
	}
	names := map[string]string{}
	for pair := range strings.SplitSeq(rename, ",") {
		if from, to, ok := strings.Cut(pair, "="); ok {
			names[from] = to
		}
	}
	c := compare(old, now, names)
	c.print()
	if out == "" {
		return nil
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// readPairs reads the reports of the rounds that both builds have run.
func readPairs(dir string) (old, now []*report.Report, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "before-*.json"))
	if err != nil {
		return nil, nil, err
	}
	for _, path := range paths {
		before, err := read(path)
		if err != nil {
			return nil, nil, err
		}
		after, err := read(filepath.Join(dir,
			"after-"+strings.TrimPrefix(filepath.Base(path), "before-")))
		if err != nil {
			return nil, nil, err
		}
		old, now = append(old, before), append(now, after)
	}
	if len(old) == 0 {
		return nil, nil, fmt.Errorf("%s holds no before-N.json: run scripts/compare-bench", dir)
	}
	return old, now, nil
}

func read(path string) (*report.Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &report.Report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// compare pairs the reports by their order.
func compare(old, now []*report.Report, names map[string]string) *Comparison {
	c := &Comparison{Before: old[0].Machine, After: now[0].Machine}
	c.Before.Repeats, c.After.Repeats = len(old), len(now)
	for _, row := range old[0].Rows {
		variant := cmp.Or(names[row.Variant], row.Variant)
		var before, after, ratios []float64
		for i := range old {
			a, ok := old[i].Row(row.Test, row.Variant, row.Metric)
			b, found := now[i].Row(row.Test, variant, row.Metric)
			if !ok || !found || a.Median == 0 {
				continue
			}
			before, after, ratios = append(before, a.Median), append(after,
				b.Median), append(ratios, b.Median/a.Median)
		}
		if len(ratios) == 0 {
			continue
		}
		slices.Sort(ratios)
		c.Rows = append(c.Rows, Row{
			Test: row.Test, Variant: variant, Metric: row.Metric, Unit: row.Unit,
			Before: side(before), After: side(after),
			Ratio: quantile(ratios, 0.5), Low: quantile(ratios, 0.25), High: quantile(ratios, 0.75),
		})
	}
	return c
}

func side(values []float64) Side {
	slices.Sort(values)
	return Side{Median: quantile(values, 0.5), Min: values[0], Max: values[len(values)-1],
		N: len(values)}
}

// quantile interpolates between the two nearest of sorted values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

func (c *Comparison) print() {
	fmt.Printf("before %s, after %s, %d runs each in turns, load %.1f\n\n", c.Before.Weft,
		c.After.Weft, c.Before.Repeats, c.Before.Load)
	fmt.Println("| test | variant | metric | before | after | after/before (quartiles) |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, r := range c.Rows {
		fmt.Printf("| %s | %s | %s (%s) | %.4g | %.4g | %.3f (%.3f–%.3f) |\n", r.Test, r.Variant,
			r.Metric, r.Unit, r.Before.Median, r.After.Median, r.Ratio, r.Low, r.High)
	}
}
