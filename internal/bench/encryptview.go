package bench

import (
	"fmt"

	"weft.dev/weft/internal/config"
)

// encryptView shows Encrypt's report. Ratios are against the same mode without encryption, and against the kernel's
// own routing.
var encryptView = &view{
	title: "Weft: encryption benchmarks", order: EncryptVariants(),
	references: []reference{{VariantUnsealed, unsealedOf}, always(VariantKernel)},
	colours:    encryptColours(), legends: encryptLegends(), panels: encryptPanels,
}

// unsealedOf is what a variant is without encryption.
func unsealedOf(variant string) string {
	if variant == VariantKernel || variant == variantGen {
		return ""
	}
	_, mode := splitVariant(variant)
	return variantIn(VariantUnsealed, mode)
}

// encryptColours are pairs: a mode's hue, pale without encryption.
func encryptColours() map[string]string {
	hues := map[string][3]string{
		config.ModeAuto: {"#9fd9c7", "#009e73", "#00533d"}, config.ModeTC: {"#bfe0f5", "#56b4e9", "#1f6fa0"},
		config.ModeXDP: {"#a6c4de", "#0072b2", "#003a5c"}, config.ModeStack: {"#f7dca3", "#e69f00", "#8a5f00"},
		VariantXDPRoad: {"#f2b48c", "#d55e00", "#7a3600"},
	}
	colours := map[string]string{VariantKernel: "#9a9a9a"}
	for mode, hue := range hues {
		for i, kind := range []string{VariantUnsealed, VariantEngineBPF, VariantEngineKmod} {
			colours[variantIn(kind, mode)] = hue[i]
		}
	}
	return colours
}

func encryptLegends() map[string]string {
	legends := map[string]string{VariantKernel: "kernel"}
	for _, mode := range encryptModes {
		for kind, what := range map[string]string{VariantUnsealed: "plain", VariantEngineBPF: "sealed, bpf", VariantEngineKmod: "sealed, kmod"} {
			legends[variantIn(kind, mode)] = mode + " " + what
		}
	}
	return legends
}

// encryptPanels lists every chart of Encrypt.
func encryptPanels() []panel {
	var peers, spread, identities []bar
	for _, n := range []string{"2", "10", "100", "1000"} {
		peers = append(peers, bar{n, "peers-" + n, "net_ns_per_packet"})
		spread = append(spread, bar{n, "seal-peers-" + n, "net_ns_per_packet"})
	}
	for _, n := range []string{"1", "100", "10000"} {
		identities = append(identities, bar{n, "identities-" + n, "net_ns_per_packet"})
	}
	both := func(metric string) []bar {
		return []bar{{"1 connection", "rr1", metric}, {"16 connections", "rr16", metric}}
	}
	tcp := func(metric string) []bar {
		return []bar{{"offload", "tcp1", metric}, {"MTU on the wire", "tcp1-wiremtu", metric}}
	}
	udp := func(metric string) []bar { return []bar{{"64 B", "udp64", metric}, {"1400 B", "udp1400", metric}} }
	road := func(metric string) []bar {
		var bars []bar
		for _, test := range []string{"seal64", "seal1400", "tunnel64", "tunnel1400"} {
			bars = append(bars, bar{test, test, metric})
		}
		return bars
	}
	crypto := func(metric string) []bar {
		var bars []bar
		for _, size := range cryptoSizes {
			bars = append(bars, bar{fmt.Sprintf("%d B", size), fmt.Sprintf("crypto%d", size), metric})
		}
		return bars
	}
	return []panel{
		{title: "Request/response, CPUs awake: median", unit: "µs", scale: 1, bars: both("p50_us")},
		{title: "Request/response, CPUs awake: 99th percentile", unit: "µs", scale: 1, bars: both("p99_us")},
		{title: "Transactions", unit: "thousand/s", scale: 1e3, bars: both("transactions_s")},
		{title: "CPU time of a transaction", unit: "µs", scale: 1, bars: both("cpu_us_per_transaction")},
		{title: "New connections (connect, 1 byte each way, close)", unit: "thousand/s", scale: 1e3, bars: []bar{{"16 at a time", "crr16", "connections_s"}}},
		{title: "UDP through sockets", unit: "thousand packets/s", scale: 1, bars: udp("kpps")},
		{title: "UDP: CPU time of a packet", unit: "µs", scale: 1, bars: udp("cpu_us_per_packet")},
		{title: "TCP, one stream", unit: "Gbit/s", scale: 1, bars: tcp("gbit_s")},
		{title: "TCP: CPU time of a gigabyte", unit: "s", scale: 1, bars: tcp("cpu_s_per_gb")},
		{title: "Frames of a generator: CPU time of a packet", unit: "ns/packet without the generator", scale: 1, wide: true, bars: road("net_ns_per_packet")},
		{title: "The engine alone: seal", unit: "ns/packet", scale: 1, bars: crypto("seal_ns")},
		{title: "The engine alone: open", unit: "ns/packet", scale: 1, bars: crypto("open_ns")},
		{title: "64 B through both nodes, by number of peers", unit: "ns/packet without the generator", scale: 1, curve: true, bars: peers},
		{title: "64 B to all peers in turn, sealed", unit: "ns/packet without the generator", scale: 1, curve: true, bars: spread},
		{title: "64 B through both nodes, by number of identities", unit: "ns/packet without the generator", scale: 1, curve: true, bars: identities},
	}
}
