package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/bench"
)

func newBench(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Measure the datapath on this machine",
		Example: "  weft bench route --quick",
	}
	cmd.AddCommand(newBenchRoute(a))
	return cmd
}

func newBenchRoute(a *app) *cobra.Command {
	var opt bench.Options
	var svg, markdown, report string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "route",
		Short: "Compare Weft's modes with plain routing and iptables",
		Long: `Compare Weft's modes with what a container host has without it, in one interleaved run: packets
per second with an in-kernel generator, bulk TCP, request/response and connections per second.
It builds its own lab of network namespaces and takes it down again. Progress goes to standard
error, the result to standard output: a Markdown table, or with -o json the format that all
of Weft's benchmarks share.

Tests: ` + strings.Join(bench.Tests(), ", ") + `
Groups of tests: ` + strings.Join(bench.Groups(), ", ") + `
Variants: ` + strings.Join(bench.Variants(), ", "),
		Example: "  weft bench route --quick\n  weft bench route --test pps64 --variant iptables,xdp,auto --repeats 7\n  weft bench route -o json --svg route.svg > route.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !quiet {
				opt.Out = a.errOut
			}
			result, err := bench.Route(cmd.Context(), opt)
			if result == nil {
				return err
			}
			// What was measured is shown even if a test failed.
			return errors.Join(err, writeReport(a, result, svg, markdown, report))
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&opt.Tests, "test", nil, "only these tests or groups")
	flags.StringSliceVar(&opt.Variants, "variant", nil, "only these variants (default: all but plain and xdp-bare)")
	flags.IntVar(&opt.Repeats, "repeats", 0, "how often each test runs per variant (default 5, with --quick 3)")
	flags.DurationVar(&opt.Duration, "duration", 0, "how long one run measures (default 3s, with --quick 1s)")
	flags.BoolVar(&opt.Quick, "quick", false, "fewer and shorter runs")
	flags.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	flags.StringVar(&svg, "svg", "", "also write plots to this file")
	flags.StringVar(&markdown, "markdown", "", "also write the Markdown table to this file")
	flags.StringVar(&report, "json", "", "also write the report as JSON to this file")
	_ = cmd.RegisterFlagCompletionFunc("test", fixed(slices.Concat(bench.Groups(), bench.Tests())...))
	_ = cmd.RegisterFlagCompletionFunc("variant", fixed(bench.Variants()...))
	return cmd
}

// writeReport writes a report to the named files and prints it.
func writeReport(a *app, result *bench.Report, svg, markdown, report string) error {
	for file, write := range map[string]func(io.Writer) error{svg: result.WriteSVG, markdown: result.WriteMarkdown, report: result.WriteJSON} {
		if err := writeFile(file, write); err != nil {
			return err
		}
	}
	return a.print(result, func(w io.Writer, _ bool) error { return result.WriteMarkdown(w) })
}

// writeFile writes a file anew; no name means none.
func writeFile(path string, write func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	if err := write(file); err != nil {
		file.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}
