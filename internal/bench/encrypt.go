package bench

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/lab"
)

// The variants of Encrypt: what happens to packets between the nodes. Each name stands for mode
// auto; with -tc, -xdp or -stack behind it for that mode, with -auto-xdp for mode auto and pods
// that ask for the XDP datapath. A variant is compared with plain in its own mode.
const (
	VariantKernel     = "kernel" // no Weft: the kernel routes, in cleartext
	VariantUnsealed   = "plain"  // Weft, encryption off
	VariantEngineBPF  = "bpf"    // Weft, encryption strict, engine bpf
	VariantEngineKmod = "kmod"   // Weft, encryption strict, engine kmod
	VariantEngineUser = "user"   // Weft, encryption strict, engine user: bulk by the sealer
)

// encryptModes are the modes of Encrypt's variants in their order, and the XDP datapath, which is
// one to them; auto has no suffix.
var encryptModes = []string{config.ModeAuto, config.ModeTC, config.ModeXDP, VariantAutoXDP,
	config.ModeStack}

// EncryptVariants lists every variant of Encrypt in the order in which they are run and shown.
func EncryptVariants() []string {
	list := []string{VariantKernel}
	for _, mode := range encryptModes {
		for _, kind := range []string{VariantUnsealed, VariantEngineBPF, VariantEngineKmod} {
			list = append(list, variantIn(kind, mode))
		}
		if mode == config.ModeAuto || mode == config.ModeTC { // what a sealer sends is opened by TC
			list = append(list, variantIn(VariantEngineUser, mode))
		}
	}
	return list
}

// variantIn names what a kind of variant is called in a mode.
func variantIn(kind, mode string) string {
	if mode == config.ModeAuto {
		return kind
	}
	return kind + "-" + mode
}

// splitVariant is the opposite of variantIn.
func splitVariant(variant string) (kind, mode string) {
	kind, mode, found := strings.Cut(variant, "-")
	if !found {
		mode = config.ModeAuto
	}
	return kind, mode
}

// DefaultEncryptVariants lists what Encrypt runs when Options.Variants is empty: all but mode
// stack, and kmod where the module is loaded.
func DefaultEncryptVariants() []string {
	_, err := os.Stat("/sys/module/weft_crypto")
	return slices.DeleteFunc(EncryptVariants(), func(v string) bool {
		kind, mode := splitVariant(v)
		return mode == config.ModeStack || kind == VariantEngineKmod && err != nil
	})
}

// EncryptTests lists every test of Encrypt by name.
func EncryptTests() []string { return encryptSuite().testNames(false) }

// EncryptGroups lists the names that stand for several tests of Encrypt.
func EncryptGroups() []string { return encryptSuite().groups() }

// Encrypt measures what sealing costs: the chosen tests between two nodes, over the chosen
// variants. It is to Route what its variants are to Route's: see there.
func Encrypt(ctx context.Context, opts Options) (*report.Report, error) {
	return measure(ctx, encryptSuite(), opts)
}

// encryptSuite is what Encrypt measures.
func encryptSuite() *suite {
	return &suite{
		variants: EncryptVariants(), defaults: DefaultEncryptVariants, tests: encryptTests(),
		view:   encryptView,
		isWeft: func(v string) bool { return v != VariantKernel && v != report.Generator },
		suits:  encryptSuits, build: buildEncryptHarness,
	}
}

// encryptSuits keeps tests and variants together that mean something.
func encryptSuits(t test, variant string) bool {
	kind, mode := splitVariant(variant)
	switch {
	case variant == report.Generator:
		return t.gen
	case t.shape == shapeNone: // the engines by themselves know no mode
		return (kind == VariantEngineBPF || kind == VariantEngineKmod) && mode == config.ModeAuto
	case t.shape == shapePair:
		return true
	default: // a tunnel without agents: the kernel alone has none, a sealer needs one, and stack would measure the stack
		return variant != VariantKernel && kind != VariantEngineUser && mode != config.ModeStack
	}
}

// buildEncryptHarness builds the harness of a variant.
func buildEncryptHarness(ctx context.Context, binary, variant string, s shape) (*harness, error) {
	kind, mode := splitVariant(variant)
	switch {
	case s == shapeNone:
		return &harness{variant: variant, shape: s,
			close: func(context.Context) error { return nil }}, nil
	case s != shapePair:
		return newTunnelHarness(variant, s, mode, engineOf(kind))
	case variant == VariantKernel:
		return newPlainHarness(ctx, variant, s)
	}
	return newLabHarness(ctx, binary, variant, s, encryptSpec(kind, mode, s))
}

// engineOf is the engine that a kind of variant asks for, "" for none.
func engineOf(kind string) string {
	if kind == VariantUnsealed {
		return ""
	}
	return kind
}

// encryptSpec describes the lab of a variant: the same for all but for what the variant is about.
func encryptSpec(kind, mode string, s shape) *lab.Spec {
	spec := weftSpec(map[string]any{"mode": modeOf(mode)}, s, podDatapathOf(mode))
	if engine := engineOf(kind); engine != "" {
		spec.Encryption = lab.EncryptionStrict
		spec.Agent = maps.Clone(spec.Agent)
		spec.Agent["encryption"] = map[string]any{"engine": engine}
	}
	return spec
}

// encryptTests lists every test of Encrypt in the order in which they run.
func encryptTests() []test {
	tests := []test{
		{name: "rr1", group: "rr", shape: shapePair, run: runRR(1, remote)},
		{name: "rr16", group: "rr", shape: shapePair, run: runRR(16, remote)},
		{name: "rr1-bulk", group: "rr", shape: shapePair, run: runRRBesideBulk(1)},
		{name: "crr16", group: "crr", shape: shapePair, run: runCRR(16)},
		{name: "udp64", group: "udp", shape: shapePair, run: runUDP(64)},
		{name: "udp512", group: "udp", shape: shapePair, extra: true, run: runUDP(512)},
		{name: "udp1400", group: "udp", shape: shapePair, run: runUDP(1400)},
		{name: "tcp1", group: "tcp", shape: shapePair, run: runBulk(1, remote)},
		{name: "tcp1-wiremtu", group: "tcp", shape: shapePair, run: wireMTU(runBulk(1, remote))},
		{name: "tcp4", group: "tcp", shape: shapePair, extra: true, run: runBulk(4, remote)},
	}
	for _, cc := range []string{"bbr", "cubic"} {
		bulk := runBulkBy(cc, 1, remote)
		tests = append(tests,
			test{name: "tcp1-" + cc, group: "tcp", shape: shapePair, extra: true, run: bulk},
			test{name: "tcp1-wiremtu-" + cc, group: "tcp", shape: shapePair, extra: true,
				run: wireMTU(bulk)})
	}
	for _, length := range []int{64, 1400} {
		tests = append(tests,
			test{name: fmt.Sprintf("seal%d", length), group: "seal", shape: shapeSeal, gen: true,
				run: runPPS(length, 1)},
			test{name: fmt.Sprintf("tunnel%d", length), group: "tunnel", shape: shapeTunnel,
				gen: true, run: runPPS(length, 1)})
	}
	for _, size := range cryptoSizes {
		tests = append(tests,
			test{name: fmt.Sprintf("crypto%d", size), group: "crypto", shape: shapeNone,
				run: runCrypto(size)})
	}
	return append(tests, scaleTests()...)
}

// cryptoSizes are the packets that the engines seal by themselves, in bytes, ESP trailer included.
var cryptoSizes = []int{64, 512, 1400}

// runCrypto measures an engine without framing and forwarding. The sample of a run is its shortest
// round, since nothing but the rest of the machine makes one longer than another.
func runCrypto(size int) runFunc {
	return func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
		const longest = 600 * time.Microsecond // of one packet in all rounds together, about
		kind, _ := splitVariant(b.variant)
		timings, err := esp.CryptoBench(kind, []int{size}, int(max(dur/longest, 20)))
		if err != nil {
			return nil, err
		}
		t := timings[0]
		s := report.Sample{"seal_ns": float64(t.Seal.Nanoseconds()),
			"open_ns": float64(t.Open.Nanoseconds())}
		if t.AES > 0 {
			s["aes_ns"], s["ghash_ns"] = float64(t.AES.Nanoseconds()), float64(t.GHASH.Nanoseconds())
		}
		return s, ctx.Err()
	}
}

// scaleTests hold the cost of a sealed packet against how many peers and identities there are. Of
// the tunnel's peers one is real and gets all frames; seal-peers sends to all of them in turn.
func scaleTests() []test {
	var tests []test
	for _, n := range []int{1, 100, 10_000} {
		tests = append(tests, test{
			name: fmt.Sprintf("identities-%d", n), group: "identities", shape: shapeTunnel,
			gen: true, extra: true,
			fill: &fill{peers: 2, identities: n}, run: runPPS(64, 1),
		})
	}
	for _, n := range []int{2, 10, 100, 1000} {
		tests = append(tests,
			test{
				name: fmt.Sprintf("peers-%d", n), group: "peers", shape: shapeTunnel, gen: true,
				extra: true,
				fill:  &fill{peers: n, identities: 1}, run: runPPS(64, 1),
			},
			test{
				name: fmt.Sprintf("seal-peers-%d", n), group: "peers", shape: shapeSeal, gen: true,
				extra: true,
				fill:  &fill{peers: n, identities: 1}, run: runSpread(64, n),
			})
	}
	return tests
}
