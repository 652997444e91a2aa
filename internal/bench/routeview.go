package bench

import (
	"slices"

	"weft.dev/weft/internal/bench/report"
)

// routeView shows Route's report.
var routeView = &report.View{
	Title: "Weft: routing benchmarks", Order: Variants(),
	References: []report.Reference{report.Always(VariantIPTables), report.Always(VariantTC)},
	Colours:    routeColours, Legends: routeLegends, Panels: routePanels(),
}

// routeColours tell the variants apart: grey without Weft, and Okabe and Ito's palette,
// which the colour-blind can read too.
var routeColours = map[string]string{
	VariantPlain: "#c4c4c4", VariantIPTables: "#7a7a7a", VariantStack: "#e69f00",
	VariantTC:         "#56b4e9",
	VariantXDPGeneric: "#cc79a7", VariantXDP: "#0072b2", VariantAuto: "#009e73",
	VariantAutoXDP: "#d55e00", VariantBare: "#a6cbe3",
}

// routeLegends says what a variant is.
var routeLegends = map[string]string{
	VariantPlain: "plain kernel", VariantIPTables: "iptables", VariantStack: "Weft stack",
	VariantTC:         "Weft tc",
	VariantXDPGeneric: "Weft xdp-generic", VariantXDP: "Weft xdp", VariantAuto: "Weft auto",
	VariantAutoXDP: "Weft XDP datapath", VariantBare: "bare XDP forwarder",
}

// routePanels lists every chart of Route; those without a row are left out.
func routePanels() []report.Panel {
	pps := []report.Bar{bar("64 B", "pps64", "pps"),
		bar("64 B, 1024 flows", "pps64-flows1k", "pps"), bar("1400 B", "pps1400", "pps")}
	net := slices.Clone(pps)
	for i := range net {
		net[i].Metric = "net_ns_per_packet"
	}
	tcp := []report.Bar{
		bar("1 stream", "tcp1-remote", "gbit_s"), bar("4 streams", "tcp4-remote", "gbit_s"),
		bar("1, MTU on the wire", "tcp1-remote-wiremtu", "gbit_s"),
		bar("4, MTU on the wire", "tcp4-remote-wiremtu", "gbit_s"),
		bar("1, same node", "tcp1-local", "gbit_s"), bar("4, same node", "tcp4-local", "gbit_s"),
	}
	cpu := slices.Clone(tcp)
	for i := range cpu {
		cpu[i].Metric = "cpu_s_per_gb"
	}
	var scale []report.Bar
	for _, n := range []string{"1", "10", "100", "1000"} {
		scale = append(scale, bar(n, "scale-"+n, "ns_per_packet"))
	}
	return []report.Panel{
		{Title: "Packets forwarded by one core", Unit: "million packets/s", Scale: 1e6, Bars: pps},
		{Title: "Cost of a packet, generator subtracted", Unit: "ns/packet", Scale: 1, Bars: net},
		{Title: "Bulk TCP", Unit: "Gbit/s", Scale: 1, Wide: true, Bars: tcp},
		{Title: "CPU of bulk TCP, both ends", Unit: "CPU s/GB", Scale: 1, Wide: true, Bars: cpu},
		{Title: "Request/response, 1 connection", Unit: "µs", Scale: 1, Wide: true,
			Bars: []report.Bar{
				bar("p50", "rr1", "p50_us"), bar("p99", "rr1", "p99_us"),
				bar("p50, same node", "rr1-local", "p50_us"),
				bar("p99, same node", "rr1-local", "p99_us"),
			}},
		{Title: "Request/response, 16 connections", Unit: "µs", Scale: 1,
			Bars: []report.Bar{bar("p50", "rr16", "p50_us"), bar("p99", "rr16", "p99_us")}},
		{Title: "Transactions", Unit: "thousand/s", Scale: 1e3, Bars: []report.Bar{
			bar("1 connection", "rr1", "transactions_s"),
			bar("16 connections", "rr16", "transactions_s"),
			bar("1, same node", "rr1-local", "transactions_s"),
		}},
		{Title: "New connections (connect, 1 byte each way, close)", Unit: "thousand/s", Scale: 1e3,
			Bars: []report.Bar{bar("16 at a time", "crr16", "connections_s")}},
		{Title: "UDP through sockets, 64 B frames", Unit: "thousand packets/s", Scale: 1,
			Bars: []report.Bar{bar("received", "udp64", "kpps")}},
		{Title: "Cost of a packet by number of endpoints on the node",
			Unit: "ns/packet, generator included", Scale: 1, Curve: true, Bars: scale},
		{Title: "CNI plugin", Unit: "ms", Scale: 1,
			Bars: []report.Bar{bar("ADD", "cni-add", "add_ms"), bar("DEL", "cni-add", "del_ms")}},
		{Title: "Agent's memory, 100 endpoints", Unit: "MiB resident", Scale: 1,
			Bars: []report.Bar{bar("RSS", "agent", "rss_mib")}},
	}
}

// bar is one place of a panel.
func bar(label, test, metric string) report.Bar {
	return report.Bar{Label: label, Test: test, Metric: metric}
}
