package demo

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"strings"
	"time"

	"weft.dev/weft/internal/bench"
	"weft.dev/weft/internal/bench/report"
)

// routeVariants are what the demo compares, in the order shown.
var routeVariants = []string{
	bench.VariantIPTables, bench.VariantStack, bench.VariantTC, bench.VariantXDPGeneric,
	bench.VariantXDP, bench.VariantAuto, bench.VariantAutoXDP,
}

// The benchmark is held in two parts, so that the second cannot cost us the first.
const (
	ratesLimit   = 90 * time.Second
	streamsLimit = 110 * time.Second
	// benchRepeats is how often each test runs per variant: as often as the time allows.
	benchRepeats = 4
)

// route measures and compares.
func (d *demo) route(ctx context.Context) error {
	d.say("The packets of a pod go to another node, which is `weft bench route` in short: one interleaved run in which the node forwards by iptables (conntrack, MASQUERADE, 20 rules) and by each of Weft's modes with everything on. Medians with minimum and maximum; × is how many times better than iptables; ns is CPU time, which other work on the machine does not stretch; net is without the generator's own cost. This takes about two minutes.")
	errRates := d.measure(ctx, ratesLimit, "pps64")
	errStreams := context.Cause(ctx)
	if errStreams == nil {
		errStreams = d.measure(ctx, streamsLimit, "tcp1-remote", "rr1")
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err() // interrupted: there is nothing to judge
	}
	if len(d.measured.Rows) == 0 {
		return errors.Join(errRates, errStreams)
	}
	d.showTable(rateTable(&d.measured))
	if t := streamsTable(&d.measured); len(t.Rows) > 0 {
		d.showTable(t)
	}
	var svg strings.Builder
	if err := d.measured.WriteSVG(&svg); err != nil {
		return err
	}
	d.add(block{SVG: template.HTML(svg.String())})
	d.routeChecks(errRates, errStreams)
	return nil
}

// measure runs tests over all variants and keeps their rows, also of a run cut short.
func (d *demo) measure(ctx context.Context, limit time.Duration, tests ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("took longer than %s", limit))
	defer cancel()
	measured, err := bench.Route(ctx, bench.Options{
		Binary: d.opts.Binary, Variants: routeVariants, Tests: tests, Repeats: benchRepeats,
		Quick: true, Out: d.opts.Progress,
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if measured != nil {
		if d.measured.View == nil {
			d.measured.Machine, d.measured.View = measured.Machine, measured.View
		}
		d.measured.Rows = append(d.measured.Rows, measured.Rows...)
	}
	return err
}

// routeChecks says what was measured, and whether Weft is worth having.
func (d *demo) routeChecks(errRates, errStreams error) {
	measured := len(routeOf(&d.measured))
	d.check("route-measured", errRates == nil && measured == len(routeVariants),
		"%d of %d variants measured%s", measured, len(routeVariants), because(errRates))
	for _, variant := range []string{bench.VariantXDP, bench.VariantAuto} {
		gross, ok := d.measured.Ratio("pps64", variant, bench.VariantIPTables, "pps")
		net, okNet := d.measured.Ratio("pps64", variant, bench.VariantIPTables, "net_ns_per_packet")
		if !ok || !okNet {
			d.check("route-"+variant, false, "mode %s or iptables was not measured", variant)
			continue
		}
		d.check("route-"+variant, gross > 1,
			"mode %s forwards %.1f times the packets/s of iptables at 64 B, %.1f times with the generator's cost subtracted", variant, gross, net)
		if variant == bench.VariantXDP {
			d.fact(fmt.Sprintf("%.1f ×", gross),
				"the packets/s of iptables, by native XDP at 64 B with every feature on")
		}
	}
	detail := fmt.Sprintf("TCP and request/response measured over %d variants", len(routeVariants))
	if errStreams != nil {
		detail = "not all of TCP and request/response was measured" + because(errStreams)
	}
	d.check("route-tcp-rr", errStreams == nil, "%s", detail)
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// rateTable compares packet rates.
func rateTable(r *report.Report) *table {
	t := &table{Header: []string{"64 B packets", "M packets/s", "min–max", "×", "ns/packet",
		"net ns", "net ×"}, Left: 1}
	for _, variant := range routeVariants {
		pps, ok := r.Row("pps64", variant, "pps")
		if !ok {
			continue
		}
		ns, _ := r.Row("pps64", variant, "ns_per_packet")
		net, _ := r.Row("pps64", variant, "net_ns_per_packet")
		t.Rows = append(t.Rows, []string{
			variant, fmt.Sprintf("%.2f", pps.Median/1e6),
			fmt.Sprintf("%.2f–%.2f", pps.Min/1e6, pps.Max/1e6),
			ratio(r, "pps64", variant, "pps"), fmt.Sprintf("%.0f", ns.Median),
			fmt.Sprintf("%.0f", net.Median), ratio(r, "pps64", variant, "net_ns_per_packet"),
		})
	}
	return t
}

// streamsTable compares bulk TCP and request/response across nodes.
func streamsTable(r *report.Report) *table {
	t := &table{Header: []string{"across nodes", "TCP Gbit/s", "min–max", "×", "round trip p50 µs",
		"p99 µs", "p50 ×"}, Left: 1}
	for _, variant := range routeVariants {
		row := []string{variant, "-", "-", ratio(r, "tcp1-remote", variant, "gbit_s"), "-", "-",
			ratio(r, "rr1", variant, "p50_us")}
		tcp, okTCP := r.Row("tcp1-remote", variant, "gbit_s")
		if okTCP {
			row[1], row[2] = fmt.Sprintf("%.1f", tcp.Median), fmt.Sprintf("%.1f–%.1f", tcp.Min,
				tcp.Max)
		}
		p50, okRR := r.Row("rr1", variant, "p50_us")
		if okRR {
			p99, _ := r.Row("rr1", variant, "p99_us")
			row[4], row[5] = fmt.Sprintf("%.0f", p50.Median), fmt.Sprintf("%.0f", p99.Median)
		}
		if okTCP || okRR {
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

func ratio(r *report.Report, test, variant, metric string) string {
	v, ok := r.Ratio(test, variant, bench.VariantIPTables, metric)
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}
