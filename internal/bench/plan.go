package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/sibling"
	"weft.dev/weft/internal/version"
)

// cleanupTimeout bounds the removal of the harnesses after a run, also of one cut short.
const cleanupTimeout = 5 * time.Minute

// busyThreads is GOMAXPROCS during a run: more than the most threads of any test,
// so that no thread back from a system call ever waits for the Go scheduler.
const busyThreads = 96

// plan is a checked set of options.
type plan struct {
	suite    *suite
	binary   string
	variants []string
	tests    []test
	repeats  int
	duration time.Duration
	out      io.Writer
	rows     *report.Collector
}

// newPlan checks options and fills in the defaults.
func newPlan(s *suite, opts Options) (*plan, error) {
	p := &plan{suite: s, binary: opts.Binary, repeats: opts.Repeats, duration: opts.Duration,
		out: opts.Out}
	if p.out == nil {
		p.out = io.Discard
	}
	var err error
	if p.tests, err = s.choose(opts.Tests); err != nil {
		return nil, err
	}
	if err := checkNames("variants", opts.Variants, s.variants); err != nil {
		return nil, err
	}
	wanted := opts.Variants
	if len(wanted) == 0 {
		wanted = s.defaults()
	}
	p.variants = slices.DeleteFunc(slices.Clone(s.variants),
		func(v string) bool { return !slices.Contains(wanted, v) })
	if err := p.numbers(opts); err != nil {
		return nil, err
	}
	if p.binary == "" && p.needsBinary() {
		if p.binary, err = sibling.Find("weft"); err != nil {
			return nil, fmt.Errorf("binary: name a weft binary: %w", err)
		}
	}
	var names []string
	for _, t := range p.tests {
		names = append(names, t.name)
	}
	p.rows = report.NewCollector(names, append([]string{report.Generator}, p.variants...))
	return p, nil
}

// needsBinary says whether some harness has agents.
func (p *plan) needsBinary() bool {
	return slices.ContainsFunc(p.variants, p.suite.isWeft) &&
		slices.ContainsFunc(p.tests,
			func(t test) bool { return t.shape == shapeForward || t.shape == shapePair })
}

// numbers checks and defaults Repeats and Duration.
func (p *plan) numbers(opts Options) error {
	repeats, duration := 5, 3*time.Second
	if opts.Quick {
		repeats, duration = 3, time.Second
	}
	if p.repeats == 0 {
		p.repeats = repeats
	}
	if p.duration == 0 {
		p.duration = duration
	}
	if p.repeats < 1 || p.repeats > 1000 {
		return fmt.Errorf("repeats: %d is out of range; choose 1 to 1000", p.repeats)
	}
	if p.duration < 100*time.Millisecond || p.duration > time.Hour {
		return fmt.Errorf("duration: %s is out of range; choose 100ms to 1h", p.duration)
	}
	return nil
}

// run measures everything, one shape of harness after the other. What could be measured
// is reported even when a part failed.
func (p *plan) run(ctx context.Context) (*report.Report, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("benchmarks build network namespaces and load BPF programs: run as root")
	}
	machine, err := describeMachine(ctx, p.binary)
	if err != nil {
		return nil, err
	}
	if p.binary == "" && slices.ContainsFunc(p.variants, p.suite.isWeft) {
		machine.Weft = describeVersion(version.Get().Version, version.Get().Commit)
	}
	machine.Repeats, machine.Seconds = p.repeats, p.duration.Seconds()
	if err := removeStale(); err != nil {
		return nil, err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(busyThreads))
	var errs []error
	for _, stage := range p.stages() {
		errs = append(errs, p.runStage(ctx, stage))
		if ctx.Err() != nil {
			break
		}
	}
	return &report.Report{Machine: machine, Rows: p.rows.Rows(), View: p.suite.view},
		errors.Join(errs...)
}

// stages groups the tests that share harnesses: ordinary ones by shape, then those that
// change how much a harness holds, in rising order.
func (p *plan) stages() [][]test {
	tests := slices.Clone(p.tests)
	slices.SortStableFunc(tests, func(a, b test) int { return a.size() - b.size() })
	var stages [][]test
	for _, grows := range []bool{false, true} {
		for _, s := range shapes {
			stages = append(stages,
				slices.DeleteFunc(slices.Clone(tests),
					func(t test) bool { return t.shape != s || t.grows() != grows }))
		}
	}
	return slices.DeleteFunc(stages, func(s []test) bool { return len(s) == 0 })
}

// runStage builds one harness per variant, runs the stage's tests on them and removes them.
// A variant that cannot be built is left out and makes the stage end with its error.
func (p *plan) runStage(ctx context.Context, tests []test) error {
	harnesses, err := p.build(ctx, tests)
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		for _, b := range harnesses {
			if e := b.close(clean); e != nil {
				fmt.Fprintf(p.out, "clean up %s: %v\n", b.variant, e)
			}
		}
	}()
	if ctx.Err() != nil ||
		!slices.ContainsFunc(harnesses,
			func(b *harness) bool { return b.variant != report.Generator }) {
		return errors.Join(err, ctx.Err())
	}
	// Harnesses that a test makes larger cannot go back: size by size. All
	// others run test after test within each repeat.
	if !tests[0].grows() {
		return errors.Join(err, p.repeat(ctx, tests, harnesses))
	}
	errs := []error{err}
	for len(tests) > 0 {
		n := alike(tests)
		if err := p.grow(ctx, tests[0], harnesses); err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, p.repeat(ctx, tests[:n], harnesses))
		}
		tests = tests[n:]
	}
	return errors.Join(errs...)
}

// alike is how many of the first tests are of one group and want harnesses of one size: these run
// in turns.
func alike(tests []test) int {
	n := 1
	for n < len(tests) && tests[n].group == tests[0].group && tests[n].size() == tests[0].size() {
		n++
	}
	return n
}

// build makes the harnesses that a stage's tests need. Harnesses that it returns beside an
// error are usable.
func (p *plan) build(ctx context.Context, tests []test) ([]*harness, error) {
	var harnesses []*harness
	var errs []error
	if slices.ContainsFunc(tests, func(t test) bool { return t.gen }) {
		b, err := newGenHarness()
		if err != nil {
			return nil, err
		}
		harnesses = append(harnesses, b)
	}
	for _, variant := range p.variants {
		if ctx.Err() != nil ||
			!slices.ContainsFunc(tests, func(t test) bool { return p.suite.suits(t, variant) }) {
			continue
		}
		b, err := p.newHarness(ctx, variant, tests[0].shape)
		if err != nil {
			errs = append(errs, err)
			fmt.Fprintf(p.out, "%v\n", err)
			continue
		}
		fmt.Fprintf(p.out, "built %s harness: %s\n", b.shape, variant)
		harnesses = append(harnesses, b)
	}
	return harnesses, errors.Join(errs...)
}

// newHarness builds a variant's harness and waits until its pods reach each other.
func (p *plan) newHarness(ctx context.Context, variant string, s shape) (b *harness, err error) {
	b, err = p.suite.build(ctx, p.binary, variant, s)
	if err != nil {
		return nil, err
	}
	if err := b.connectable(ctx); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return nil, errors.Join(err, b.close(clean))
	}
	return b, nil
}

// grow gives every harness as much as a test wants.
func (p *plan) grow(ctx context.Context, t test, harnesses []*harness) error {
	for _, b := range harnesses {
		if !p.suite.suits(t, b.variant) {
			continue
		}
		start := time.Now()
		if t.endpoints > 0 && b.grow != nil {
			if err := b.grow(ctx, t.endpoints); err != nil {
				return fmt.Errorf("%s/%s: add endpoints: %w", t.name, b.variant, err)
			}
			fmt.Fprintf(p.out, "%s: %d endpoints after %s\n", b.variant, t.endpoints,
				time.Since(start).Round(time.Millisecond))
		}
		if t.fill != nil && b.fill != nil {
			if err := b.fill(ctx, *t.fill); err != nil {
				return fmt.Errorf("%s/%s: fill: %w", t.name, b.variant, err)
			}
			fmt.Fprintf(p.out, "%s: %s after %s\n", b.variant, t.fill,
				time.Since(start).Round(time.Millisecond))
		}
	}
	return nil
}

// repeat runs tests over harnesses, harness after harness within each test and repeat. The order
// of the harnesses turns by one with each repeat, so that none is always first.
func (p *plan) repeat(ctx context.Context, tests []test, harnesses []*harness) error {
	var errs []error
	failed := map[[2]string]bool{}
	for n := range p.repeats {
		order := slices.Concat(harnesses[n%len(harnesses):], harnesses[:n%len(harnesses)])
		for _, t := range tests {
			got := map[string]report.Sample{}
			for _, b := range order {
				key := [2]string{t.name, b.variant}
				if !p.suite.suits(t, b.variant) || failed[key] {
					continue
				}
				s, err := p.one(ctx, n, t, b)
				if ctx.Err() != nil {
					return errors.Join(append(errs, ctx.Err())...)
				}
				if err != nil {
					failed[key] = true
					errs = append(errs, fmt.Errorf("%s/%s: %w", t.name, b.variant, err))
					fmt.Fprintf(p.out, "%s %s failed: %v\n", t.name, b.variant, err)
					continue
				}
				got[b.variant] = s
			}
			p.record(t, got)
		}
	}
	return errors.Join(errs...)
}

// one runs one test once on one harness.
func (p *plan) one(ctx context.Context, n int, t test, b *harness) (report.Sample, error) {
	if t.runMany != nil {
		samples, err := t.runMany(ctx, b)
		for _, s := range samples {
			p.rows.Add(t.name, b.variant, s)
		}
		if len(samples) > 0 {
			fmt.Fprintf(p.out, "%d/%d %-20s %-12s %s, %d in all\n", n+1, p.repeats, t.name,
				b.variant, samples[0], len(samples))
		}
		return nil, err
	}
	s, err := t.run(ctx, b, p.duration)
	if err == nil {
		fmt.Fprintf(p.out, "%d/%d %-20s %-12s %s\n", n+1, p.repeats, t.name, b.variant, s)
	}
	return s, err
}

// record keeps one repeat's samples; the generator's cost of the same repeat is
// subtracted from each variant's.
func (p *plan) record(t test, got map[string]report.Sample) {
	gen, hasGen := got[report.Generator]
	for variant, s := range got {
		if hasGen && variant != report.Generator {
			s["net_ns_per_packet"] = s["ns_per_packet"] - gen["ns_per_packet"]
		}
		p.rows.Add(t.name, variant, s)
	}
}
