package bench

import (
	"fmt"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/config"
)

// encryptView shows Encrypt's report. Ratios are against the same mode without encryption, and
// against the kernel's own routing.
var encryptView = &report.View{
	Title: "Weft: encryption benchmarks", Order: EncryptVariants(),
	References: []report.Reference{{Name: VariantUnsealed, Of: unsealedOf},
		report.Always(VariantKernel)},
	Colours: encryptColours(), Legends: encryptLegends(), Panels: encryptPanels(),
}

// unsealedOf is what a variant is without encryption.
func unsealedOf(variant string) string {
	if variant == VariantKernel || variant == report.Generator {
		return ""
	}
	_, mode := splitVariant(variant)
	return variantIn(VariantUnsealed, mode)
}

// encryptColours are pairs: a mode's hue, pale without encryption.
func encryptColours() map[string]string {
	hues := map[string][3]string{
		config.ModeAuto:  {"#9fd9c7", "#009e73", "#00533d"},
		config.ModeTC:    {"#bfe0f5", "#56b4e9", "#1f6fa0"},
		config.ModeXDP:   {"#a6c4de", "#0072b2", "#003a5c"},
		config.ModeStack: {"#f7dca3", "#e69f00", "#8a5f00"},
		VariantAutoXDP:   {"#f2b48c", "#d55e00", "#7a3600"},
	}
	colours := map[string]string{VariantKernel: "#9a9a9a"}
	for mode, hue := range hues {
		for i, kind := range []string{VariantUnsealed, VariantEngineBPF, VariantEngineKmod} {
			colours[variantIn(kind, mode)] = hue[i]
		}
	}
	colours[VariantEngineUser], colours[variantIn(VariantEngineUser,
		config.ModeTC)] = "#cc79a7", "#8a4a70"
	return colours
}

func encryptLegends() map[string]string {
	legends := map[string]string{VariantKernel: "kernel"}
	for _, mode := range encryptModes {
		for kind, what := range map[string]string{VariantUnsealed: "plain",
			VariantEngineBPF: "sealed, bpf", VariantEngineKmod: "sealed, kmod",
			VariantEngineUser: "sealed, user"} {
			legends[variantIn(kind, mode)] = mode + " " + what
		}
	}
	return legends
}

// encryptPanels lists every chart of Encrypt.
func encryptPanels() []report.Panel {
	var peers, spread, identities []report.Bar
	for _, n := range []string{"2", "10", "100", "1000"} {
		peers = append(peers, bar(n, "peers-"+n, "net_ns_per_packet"))
		spread = append(spread, bar(n, "seal-peers-"+n, "net_ns_per_packet"))
	}
	for _, n := range []string{"1", "100", "10000"} {
		identities = append(identities, bar(n, "identities-"+n, "net_ns_per_packet"))
	}
	both := func(metric string) []report.Bar {
		return []report.Bar{bar("1 connection", "rr1", metric),
			bar("16 connections", "rr16", metric)}
	}
	tcp := func(metric string) []report.Bar {
		return []report.Bar{bar("offload", "tcp1", metric),
			bar("MTU on the wire", "tcp1-wiremtu", metric)}
	}
	udp := func(metric string) []report.Bar {
		return []report.Bar{bar("64 B", "udp64", metric), bar("1400 B", "udp1400", metric)}
	}
	path := func(metric string) []report.Bar {
		var bars []report.Bar
		for _, test := range []string{"seal64", "seal1400", "tunnel64", "tunnel1400"} {
			bars = append(bars, bar(test, test, metric))
		}
		return bars
	}
	crypto := func(metric string) []report.Bar {
		var bars []report.Bar
		for _, size := range cryptoSizes {
			bars = append(bars,
				bar(fmt.Sprintf("%d B", size), fmt.Sprintf("crypto%d", size), metric))
		}
		return bars
	}
	return []report.Panel{
		{Title: "Request/response, CPUs awake: median", Unit: "µs", Scale: 1, Bars: both("p50_us")},
		{Title: "Request/response, CPUs awake: 99th percentile", Unit: "µs", Scale: 1,
			Bars: both("p99_us")},
		{Title: "Transactions", Unit: "thousand/s", Scale: 1e3, Bars: both("transactions_s")},
		{Title: "CPU time of a transaction", Unit: "µs", Scale: 1,
			Bars: both("cpu_us_per_transaction")},
		{Title: "New connections (connect, 1 byte each way, close)", Unit: "thousand/s", Scale: 1e3,
			Bars: []report.Bar{bar("16 at a time", "crr16", "connections_s")}},
		{Title: "UDP through sockets", Unit: "thousand packets/s", Scale: 1, Bars: udp("kpps")},
		{Title: "UDP: CPU time of a packet", Unit: "µs", Scale: 1, Bars: udp("cpu_us_per_packet")},
		{Title: "TCP, one stream", Unit: "Gbit/s", Scale: 1, Bars: tcp("gbit_s")},
		{Title: "TCP: CPU time of a gigabyte", Unit: "s", Scale: 1, Bars: tcp("cpu_s_per_gb")},
		{Title: "Frames of a generator: CPU time of a packet",
			Unit: "ns/packet without the generator", Scale: 1, Wide: true,
			Bars: path("net_ns_per_packet")},
		{Title: "The engine alone: seal", Unit: "ns/packet", Scale: 1, Bars: crypto("seal_ns")},
		{Title: "The engine alone: open", Unit: "ns/packet", Scale: 1, Bars: crypto("open_ns")},
		{Title: "64 B through both nodes, by number of peers",
			Unit: "ns/packet without the generator", Scale: 1, Curve: true, Bars: peers},
		{Title: "64 B to all peers in turn, sealed", Unit: "ns/packet without the generator",
			Scale: 1, Curve: true, Bars: spread},
		{Title: "64 B through both nodes, by number of identities",
			Unit: "ns/packet without the generator", Scale: 1, Curve: true, Bars: identities},
	}
}
