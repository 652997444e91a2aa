package bench

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/inet"
)

func TestNewPlanDefaults(t *testing.T) {
	p, err := newPlan(routeSuite(), Options{Binary: "weft"})
	if err != nil {
		t.Fatal(err)
	}
	if p.repeats != 5 || p.duration != 3*time.Second {
		t.Errorf("default is %d × %s", p.repeats, p.duration)
	}
	if diff := cmp.Diff(DefaultVariants(), p.variants); diff != "" {
		t.Error(diff)
	}
	if len(p.tests) != len(DefaultTests()) || p.binary == "" {
		t.Errorf("%d tests, binary %q", len(p.tests), p.binary)
	}
	if p, err = newPlan(routeSuite(), Options{Quick: true, Binary: "weft"}); err != nil ||
		p.repeats != 3 || p.duration != time.Second {
		t.Errorf("quick is %d × %s, %v", p.repeats, p.duration, err)
	}
}

func TestNewPlanRefuses(t *testing.T) {
	cases := []struct {
		name string
		opts Options
		want string
	}{
		{"unknown test", Options{Tests: []string{"pps65"}},
			`tests: "pps65" is not known; choose from pps64`},
		{"unknown variant", Options{Variants: []string{"netkit"}},
			`variants: "netkit" is not known; choose from plain`},
		{"the generator as a variant", Options{Variants: []string{"gen"}},
			`variants: "gen" is not known`},
		{"negative repeats", Options{Repeats: -1}, "repeats: -1 is out of range"},
		{"no time", Options{Duration: time.Millisecond}, "duration: 1ms is out of range"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := newPlan(routeSuite(), c.opts)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %s…", err, c.want)
			}
		})
	}
}

func TestChooseTests(t *testing.T) {
	cases := []struct {
		names []string
		want  []string
	}{
		{[]string{"rr16", "pps64"}, []string{"pps64", "rr16"}},
		{[]string{"rr"}, []string{"rr1", "rr16", "rr1-local"}},
		{[]string{"scale"}, []string{"scale-1", "scale-10", "scale-100", "scale-1000"}},
		{[]string{"all"}, Tests()},
	}
	for _, c := range cases {
		tests, err := routeSuite().choose(c.names)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range tests {
			got = append(got, one.name)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v:\n%s", c.names, diff)
		}
	}
}

func TestEveryPanelNamesKnownRows(t *testing.T) {
	for _, p := range routeView.Panels {
		for _, b := range p.Bars {
			if !slices.Contains(Tests(), b.Test) || report.FindMetric(b.Metric).Unit == "" {
				t.Errorf("panel %q shows %s/%s, which no test measures", p.Title, b.Test, b.Metric)
			}
		}
	}
}

func TestStages(t *testing.T) {
	p, err := newPlan(routeSuite(), Options{Tests: []string{"all"}, Binary: "weft"})
	if err != nil {
		t.Fatal(err)
	}
	for i, stage := range p.stages() {
		for _, one := range stage[1:] {
			if one.shape != stage[0].shape {
				t.Errorf("stage %d mixes shapes %s and %s", i, stage[0].shape, one.shape)
			}
			if one.grows() != stage[0].grows() {
				t.Errorf("stage %d mixes harnesses that grow with harnesses that do not", i)
			}
		}
	}
}

func TestIPTablesRules(t *testing.T) {
	text := iptablesRules("wtpod+", netip.MustParsePrefix("10.0.0.0/24"))
	filter, nat, ok := strings.Cut(text, "*nat\n")
	if !ok {
		t.Fatalf("no nat table:\n%s", text)
	}
	if n := strings.Count(filter, "-A "); n != 20 {
		t.Errorf("%d filter rules, the baseline is defined with 20", n)
	}
	if n := strings.Count(nat, "-A "); n != 1 ||
		!strings.Contains(nat, "-s 10.0.0.0/24 ! -o wtpod+ -j MASQUERADE") {
		t.Errorf("nat is not one MASQUERADE rule:\n%s", nat)
	}
	if strings.Count(text, "COMMIT\n") != 2 {
		t.Error("not every table is committed")
	}
}

func TestFrameHeader(t *testing.T) {
	f := frameSpec{
		srcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, dstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		src: netip.MustParseAddr("10.0.0.1"), dst: netip.MustParseAddr("10.0.1.1"), length: 64,
		flows: 1,
	}
	frame := f.frame()
	if len(frame) != 64 || inet.Checksum(frame[14:34]) != 0 {
		t.Fatalf("length %d, checksum of it all %#x", len(frame), inet.Checksum(frame[14:34]))
	}
	if err := f.checkForwarded(frame, f.dstMAC, 0); err != nil {
		t.Errorf("own frame refused: %v", err)
	}
	cases := map[string]struct {
		change func([]byte)
		want   string
	}{
		"not routed":     {func([]byte) {}, "TTL 64, want 63"},
		"stale checksum": {func(b []byte) { b[22]-- }, "wrong IPv4 header checksum"},
		"wrong MAC":      {func(b []byte) { b[0] ^= 1 }, "destination MAC"},
		"cut":            {func(b []byte) { b[17]-- }, "length 49, want 50"},
		"redirected":     {func(b []byte) { b[33]++ }, "destination changed"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := f.frame()
			c.change(got)
			if err := f.checkForwarded(got, f.dstMAC, 1); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestParsers(t *testing.T) {
	if got := cpuModel("processor\t: 0\nmodel name\t: Fast CPU 9\n"); got != "Fast CPU 9" {
		t.Errorf("CPU model %q", got)
	}
	if rss, err := parseRSS("Name:\tweft\nVmRSS:\t    2048 kB\n"); err != nil || rss != 2 {
		t.Errorf("RSS %g, %v", rss, err)
	}
	if _, err := parseRSS("Name:\tweft\n"); err == nil {
		t.Error("parseRSS without VmRSS has no error")
	}
}

func TestHostOf(t *testing.T) {
	p := netip.MustParsePrefix("10.201.16.0/20")
	for n, want := range map[int]string{10: "10.201.16.10", 300: "10.201.17.44",
		1010: "10.201.19.242"} {
		if got := hostOf(p, n).String(); got != want {
			t.Errorf("hostOf(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestWeftSpecIsValid(t *testing.T) {
	for _, variant := range slices.DeleteFunc(Variants(),
		func(v string) bool { return !isWeft(v) }) {
		for _, s := range []shape{shapeForward, shapePair} {
			spec := weftSpec(agentConfig(variant), s, podDatapathOf(variant))
			if err := spec.Validate(); err != nil {
				t.Errorf("%s/%s: %v", variant, s, err)
			}
			for _, p := range spec.Pods {
				if (p.PodDatapath == "xdp") != (variant == VariantAutoXDP) {
					t.Errorf("%s/%s: pod %s has datapath %q", variant, s, p.Name, p.PodDatapath)
				}
			}
			if mode := spec.Agent["mode"]; variant == VariantAutoXDP && mode != "auto" {
				t.Errorf("%s/%s: mode %v", variant, s, mode)
			}
		}
	}
}
