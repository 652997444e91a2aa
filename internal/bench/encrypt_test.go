package bench

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/bench/report"
)

func TestEncryptVariants(t *testing.T) {
	for _, v := range EncryptVariants()[1:] {
		kind, mode := splitVariant(v)
		if variantIn(kind, mode) != v {
			t.Errorf("%s is taken for %s in mode %s", v, kind, mode)
		}
		if s := encryptSpec(kind, mode, shapePair); s.Encrypted() == (kind == VariantUnsealed) {
			t.Errorf("%s: encryption %q", v, s.Encryption)
		} else if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", v, err)
		} else if path := s.Pods[0].PodDatapath; (path == "xdp") != strings.HasSuffix(v, "-auto-xdp") {
			t.Errorf("%s: pods have datapath %q", v, path)
		}
		if !slices.Contains(EncryptVariants(), unsealedOf(v)) {
			t.Errorf("%s is compared with %q, which is no variant", v, unsealedOf(v))
		}
	}
	for _, v := range DefaultEncryptVariants() {
		if !slices.Contains(EncryptVariants(), v) || strings.HasSuffix(v, "-stack") {
			t.Errorf("%s runs by default", v)
		}
	}
}

func TestEncryptSuits(t *testing.T) {
	shapes := map[shape]test{}
	for _, one := range encryptTests() {
		shapes[one.shape] = one
	}
	for _, c := range []struct {
		shape   shape
		variant string
		want    bool
	}{
		{shapePair, VariantKernel, true}, {shapePair, "bpf-stack", true},
		{shapePair, report.Generator, false},
		{shapeTunnel, VariantKernel, false}, {shapeTunnel, "plain-tc", true},
		{shapeTunnel, "bpf-stack", false}, {shapeTunnel, report.Generator, true},
		{shapeSeal, "bpf", true}, {shapeSeal, report.Generator, true},
		{shapeNone, "bpf", true}, {shapeNone, "kmod", true}, {shapeNone, "bpf-tc", false},
		{shapeNone, "plain", false}, {shapeNone, report.Generator, false},
	} {
		if got := encryptSuits(shapes[c.shape], c.variant); got != c.want {
			t.Errorf("%s in variant %s: %t", c.shape, c.variant, got)
		}
	}
}

func TestEncryptStages(t *testing.T) {
	p, err := newPlan(encryptSuite(), Options{Tests: []string{"all"}, Binary: "weft"})
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for i, stage := range p.stages() {
		count += len(stage)
		for j, one := range stage {
			if one.shape != stage[0].shape || one.grows() != stage[0].grows() {
				t.Errorf("stage %d mixes harnesses: %s and %s", i, stage[0].name, one.name)
			}
			if j > 0 && one.fill != nil && one.fill.peers < stage[j-1].fill.peers {
				t.Errorf("stage %d takes peers away before %s", i, one.name)
			}
		}
	}
	if count != len(EncryptTests()) {
		t.Errorf("%d tests in stages, %d in all", count, len(EncryptTests()))
	}
}

func TestEveryEncryptPanelNamesKnownRows(t *testing.T) {
	for _, p := range encryptView.Panels {
		for _, b := range p.Bars {
			if !slices.Contains(EncryptTests(), b.Test) || report.FindMetric(b.Metric).Unit == "" {
				t.Errorf("panel %q shows %s/%s, which no test measures", p.Title, b.Test, b.Metric)
			}
		}
	}
	for _, v := range EncryptVariants() {
		if encryptView.Colours[v] == "" || encryptView.Legends[v] == "" {
			t.Errorf("variant %s has no colour or legend", v)
		}
	}
}

// TestEncryptRatios: each mode's rows are held against that mode in cleartext, and against the
// kernel.
func TestEncryptRatios(t *testing.T) {
	r := &report.Report{View: encryptView, Rows: []report.Row{
		row("rr1", VariantKernel, "p50_us", "µs", 20, 20, 20, 1),
		row("rr1", "plain", "p50_us", "µs", 10, 10, 10, 1),
		row("rr1", "bpf", "p50_us", "µs", 20, 20, 20, 1),
		row("rr1", "plain-tc", "p50_us", "µs", 30, 30, 30, 1),
		row("rr1", "bpf-tc", "p50_us", "µs", 40, 40, 40, 1),
	}}
	var out bytes.Buffer
	if err := r.WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| variant | p50_us [µs] | × plain | × kernel |", "| kernel | 20.0 | – | 1.00 |",
		"| bpf | 20.0 | 0.50 | 1.00 |", "| bpf-tc | 40.0 | 0.75 | 0.50 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestSealedFrameIsChecked(t *testing.T) {
	from, to := plainNodes[0].Addr(), plainNodes[1].Addr()
	sink := net.HardwareAddr{2, 0, 0, 0, 0, 2}
	inner := frameSpec{length: 64}
	good := func() []byte {
		return frameSpec{srcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, dstMAC: sink, src: from,
			dst: to, length: 64 + sealedOverhead}.frame()
	}
	if err := inner.checkSealed(good(), sink); err != nil {
		t.Errorf("sealed frame refused: %v", err)
	}
	elsewhere := inner
	elsewhere.outer = netip.MustParseAddr("172.30.0.1")
	if err := elsewhere.checkSealed(good(), sink); err == nil {
		t.Error("a frame to another node than the first peer is accepted")
	}
	for name, change := range map[string]func([]byte){
		"wrong MAC": func(b []byte) { b[0] ^= 1 }, "stale checksum": func(b []byte) { b[22]-- },
		"in cleartext": func(b []byte) { b[30]++; b[24]-- },
		"too short":    func(b []byte) { b[17]--; b[25]++ },
	} {
		b := good()
		change(b)
		if err := inner.checkSealed(b, sink); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestGeneratorTakesTurns: with several destinations the header's sum is right for each.
func TestGeneratorTakesTurns(t *testing.T) {
	f := frameSpec{
		srcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, dstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		src: netip.MustParseAddr("10.0.0.1"), dst: netip.MustParseAddr("10.0.1.1"), length: 64,
		flows: 1,
	}
	var header = f.header()[14:34]
	sum := f.restSum()
	for _, at := range []int{16, 18, 10} {
		sum += uint32(header[at]) | uint32(header[at+1])<<8 // as a little-endian machine reads them
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if sum != 0xffff {
		t.Errorf("the rest's sum does not go with destination and checksum: %#x", sum)
	}
}

// TestBinaryIsNamed: a bench with agents wants a weft binary, and never takes the running program
// for one.
func TestBinaryIsNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := newPlan(encryptSuite(), Options{Tests: []string{"rr1"}}); err == nil ||
		!strings.Contains(err.Error(), "name a weft binary") {
		t.Errorf("got %v", err)
	}
	if p, err := newPlan(encryptSuite(),
		Options{Tests: []string{"seal", "tunnel", "crypto", "peers"}}); err != nil ||
		p.binary != "" {
		t.Errorf("a binary is asked for where no agent runs: %v, %v", p, err)
	}
}

// TestEncryptSmoke runs the bench for a moment on harnesses of each kind: rows must be there and
// plausible, nothing is said about how fast anything is.
func TestEncryptSmoke(t *testing.T) {
	needRoot(t)
	t.Run("without agents", func(t *testing.T) {
		checkRows(t, Options{
			Variants: []string{"plain", "bpf"}, Duration: 100 * time.Millisecond,
			Tests: []string{"seal1400", "tunnel64", "crypto64", "seal-peers-10"},
		}, map[string][]string{
			"seal1400": {"pps", "ns_per_packet"}, "tunnel64": {"pps", "ns_per_packet"},
			"seal-peers-10": {"ns_per_packet"},
			"crypto64":      {"seal_ns", "open_ns", "aes_ns", "ghash_ns"},
		})
	})
	t.Run("with agents", func(t *testing.T) {
		checkRows(t, Options{
			Binary: builtWeft(t), Variants: []string{"plain", "bpf"},
			Duration: 200 * time.Millisecond,
			Tests:    []string{"rr1", "crr16", "udp64", "tcp1-wiremtu"},
		}, map[string][]string{
			"rr1":   {"p50_us", "p99_us", "transactions_s", "cpu_us_per_transaction"},
			"crr16": {"connections_s"},
			"udp64": {"kpps", "cpu_us_per_packet"}, "tcp1-wiremtu": {"gbit_s", "cpu_s_per_gb"},
		})
	})
}

// builtWeft is the binary that make build has built; without one the test is skipped.
func builtWeft(t *testing.T) string {
	t.Helper()
	binary, err := filepath.Abs("../../build/weft")
	if err == nil {
		_, err = os.Stat(binary)
	}
	if err != nil {
		t.Skip("needs build/weft: run `make build`")
	}
	return binary
}

// checkRows runs Encrypt once and looks for the metrics of each test in every variant that the test
// suits.
func checkRows(t *testing.T, opts Options, metrics map[string][]string) {
	t.Helper()
	opts.Repeats = 1
	r, err := Encrypt(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := encryptSuite().choose(opts.Tests)
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, one := range tests {
		for _, variant := range opts.Variants {
			for _, name := range metrics[one.name] {
				row, ok := r.Row(one.name, variant, name)
				if encryptSuits(one, variant) && (!ok || row.Median <= 0 || row.N != 1) {
					missing = append(missing, one.name+" "+variant+" "+name)
				}
			}
		}
	}
	if diff := cmp.Diff([]string(nil), missing); diff != "" {
		t.Errorf("rows that are missing or not plausible:\n%s", diff)
	}
}
