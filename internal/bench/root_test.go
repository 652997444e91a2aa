package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// needRoot skips tests that make namespaces when not root, and checks at the end
// that nothing of this process is left.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces and BPF programs")
	}
	t.Cleanup(func() {
		for _, dir := range []string{netns.Dir, lab.BPFFS, os.TempDir()} {
			left, err := filepath.Glob(filepath.Join(dir,
				fmt.Sprintf("%s%d-*", namePrefix, os.Getpid())))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		}
	})
}

func TestPPSCountsWhatItSends(t *testing.T) {
	needRoot(t)
	r, err := Route(t.Context(), Options{
		Variants: []string{VariantPlain, VariantIPTables},
		Tests:    []string{"pps64", "pps64-flows1k"}, Repeats: 1, Duration: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []string{"pps64", "pps64-flows1k"} {
		for _, variant := range []string{report.Generator, VariantPlain, VariantIPTables} {
			pps, ok := r.Row(test, variant, "pps")
			if !ok || pps.Median <= 0 {
				t.Errorf("%s/%s: pps %v (there: %t)", test, variant, pps.Median, ok)
			}
			if loss, ok := r.Row(test, variant, "loss"); !ok || loss.Median < 0 ||
				loss.Median > 0.5 {
				t.Errorf("%s/%s: loss %v (there: %t)", test, variant, loss.Median, ok)
			}
			if same, _ := r.Row(test, variant, "same_cpu"); same.Median != 1 {
				t.Errorf("%s/%s: %v of the frames on the generator's CPU; wall time is not CPU time then", test, variant, same.Median)
			}
		}
	}
}

func TestTrafficOverPlain(t *testing.T) {
	needRoot(t)
	r, err := Route(t.Context(), Options{
		Variants: []string{VariantPlain}, Repeats: 1, Duration: 100 * time.Millisecond,
		Tests: []string{"tcp4-remote-wiremtu", "tcp1-local", "rr16", "crr16", "udp64"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][2]string{
		{"tcp4-remote-wiremtu", "gbit_s"}, {"tcp1-local", "gbit_s"}, {"rr16", "p50_us"},
		{"rr16", "transactions_s"}, {"crr16", "connections_s"}, {"udp64", "kpps"},
	} {
		if row, ok := r.Row(want[0], VariantPlain, want[1]); !ok || row.Median <= 0 {
			t.Errorf("%s %s: %v (there: %t)", want[0], want[1], row.Median, ok)
		}
	}
}

func TestRouteStopsWithItsContext(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	_, err := Route(ctx,
		Options{Variants: []string{VariantPlain}, Tests: []string{"pps64", "rr1"},
			Duration: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestWireMTUPutsOffloadsBack(t *testing.T) {
	needRoot(t)
	b, err := newPlainHarness(t.Context(), VariantPlain, shapePair)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.close(context.Background()) }()
	run := wireMTU(func(context.Context, *harness, time.Duration) (report.Sample, error) {
		for _, p := range b.wire {
			if changed, err := setFeatures(p, false, segmentation...); err != nil ||
				len(changed) > 0 {
				t.Errorf("on the wire during the test: %v, %v", changed, err)
			}
		}
		return nil, nil
	})
	if _, err := run(t.Context(), b, 0); err != nil {
		t.Fatal(err)
	}
	for _, p := range b.wire {
		if changed, err := setFeatures(p, true, segmentation...); err != nil || len(changed) > 0 {
			t.Errorf("not put back: %v, %v", changed, err)
		}
	}
}

func TestRemoveStale(t *testing.T) {
	needRoot(t)
	const gone = 1<<22 + 1 // above the largest process id Linux gives
	name := fmt.Sprintf("%s%d-1-a", namePrefix, gone)
	if _, err := netns.Create(name); err != nil {
		t.Fatal(err)
	}
	if err := removeStale(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(netns.Path(name)); !os.IsNotExist(err) {
		t.Errorf("the namespace of a dead bench is still there: %v", err)
		_ = netns.Delete(name)
	}
}
