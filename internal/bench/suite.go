package bench

import (
	"context"
	"slices"

	"weft.dev/weft/internal/bench/report"
)

// suite is one benchmark: what it measures, on which harnesses, and how its report is shown.
type suite struct {
	// variants in the order in which they run and are shown; defaults are those that run if none is
	// named.
	variants []string
	defaults func() []string
	tests    []test
	// isWeft tells variants that a weft binary runs in.
	isWeft func(variant string) bool
	// suits says whether a test can be run in a variant.
	suits func(t test, variant string) bool
	build func(ctx context.Context, binary, variant string, s shape) (*harness, error)
	view  *report.View
}

// routeSuite is what Route measures.
func routeSuite() *suite {
	return &suite{
		variants: Variants(), defaults: DefaultVariants, tests: allTests(), isWeft: isWeft,
		suits: routeSuits, view: routeView,
		build: func(ctx context.Context, binary, variant string, s shape) (*harness, error) {
			if isWeft(variant) {
				return newWeftHarness(ctx, binary, variant, s)
			}
			return newPlainHarness(ctx, variant, s)
		},
	}
}

func routeSuits(t test, variant string) bool {
	switch variant {
	case report.Generator:
		return t.gen
	case VariantBare:
		return t.gen && t.endpoints == 0
	default:
		return !t.weftOnly || isWeft(variant)
	}
}

// testNames lists the suite's tests, or those that run by default.
func (s *suite) testNames(byDefault bool) []string {
	var names []string
	for _, t := range s.tests {
		if !byDefault || !t.extra {
			names = append(names, t.name)
		}
	}
	return names
}

// groups lists the names that stand for several tests.
func (s *suite) groups() []string {
	var groups []string
	for _, t := range s.tests {
		if !slices.Contains(groups, t.group) {
			groups = append(groups, t.group)
		}
	}
	return append(groups, "all")
}

// choose resolves names and groups to tests, in the suite's order.
func (s *suite) choose(names []string) ([]test, error) {
	if len(names) == 0 {
		names = s.testNames(true)
	}
	if err := checkNames("tests", names, append(s.testNames(false), s.groups()...)); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(s.tests), func(t test) bool {
		return !slices.Contains(names, t.name) && !slices.Contains(names, t.group) &&
			!slices.Contains(names, "all")
	}), nil
}

// measure checks the options against a suite and runs it.
func measure(ctx context.Context, s *suite, opts Options) (*report.Report, error) {
	plan, err := newPlan(s, opts)
	if err != nil {
		return nil, err
	}
	return plan.run(ctx)
}
