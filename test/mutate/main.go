// Command mutate asks whether the tests would notice: it puts one fault at a time into the datapath
// or the keys, as mutations.yaml lists them, and runs the test that must fail then. `make mutate`
// runs it; CONTRIBUTING.md says how to add a mutation.
//
// It exits 1 if a fault goes unnoticed, or cannot be judged: the table is stale, the program is
// refused, the test fails without it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

// parallel is how many mutations are tried at once.
const parallel = 2

type options struct {
	only   string
	budget time.Duration
	seed   uint64
	fresh  bool
	// unproven are those that nobody has seen to be caught.
	unproven bool
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "",
		"a regular expression that the mutations' names or files must match")
	flag.DurationVar(&o.budget, "for", 0,
		"begin no mutation after this time, and take them in random order")
	flag.Uint64Var(&o.seed, "seed", 0, "the random order's seed; 0 draws one")
	flag.BoolVar(&o.unproven, "unproven", false, "only those that the table marks so")
	flag.BoolVar(&o.fresh, "fresh", false,
		"try those again too that an interrupted run of the same tree has tried")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := mutate(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
	}
	if !ok || err != nil {
		stop()
		os.Exit(1)
	}
}

func mutate(ctx context.Context, o options) (bool, error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return false, err
	}
	table, err := loadTable("test/mutate/mutations.yaml", root)
	if err != nil {
		return false, err
	}
	if table, err = choose(table, o); err != nil {
		return false, err
	}
	scratch, err := os.MkdirTemp("", "weft-mutate-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(scratch)
	done, err := openJournal(filepath.Join(root, "build", "mutate.json"), root, o.fresh ||
		o.budget > 0)
	if err != nil {
		return false, err
	}
	s := &session{
		runner: newRunner(ctx, root, scratch), journal: done,
		began: time.Now(), budget: o.budget,
	}
	s.all(ctx, table)
	return s.report(ctx, len(table))
}

// choose takes what was asked for, in the table's order or at random.
func choose(table []mutation, o options) ([]mutation, error) {
	only, err := regexp.Compile(o.only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	table = slices.DeleteFunc(table,
		func(m mutation) bool { return !only.MatchString(m.Name) && !only.MatchString(m.File) })
	if o.unproven || o.budget > 0 {
		table = slices.DeleteFunc(table, func(m mutation) bool { return m.Unproven != o.unproven })
	}
	if len(table) == 0 {
		return nil, fmt.Errorf("no mutation matches %q", o.only)
	}
	if o.budget > 0 {
		if o.seed == 0 {
			o.seed = rand.Uint64()
		}
		fmt.Printf("mutate: seed %d (to have the same order again: go run ./test/mutate -for %s -seed %d)\n", o.seed, o.budget, o.seed)
		rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(table),
			func(i, j int) { table[i], table[j] = table[j], table[i] })
	}
	return table, nil
}

// session is one run over the table.
type session struct {
	*runner
	*journal
	began  time.Time
	budget time.Duration

	mu             sync.Mutex
	passed, failed int
}

func (s *session) all(ctx context.Context, table []mutation) {
	queue := make(chan mutation)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for m := range queue {
				s.one(ctx, m)
			}
		})
	}
	for _, m := range table {
		if ctx.Err() != nil || (s.budget > 0 && time.Since(s.began) > s.budget) {
			break
		}
		queue <- m
	}
	close(queue)
	workers.Wait()
}

func (s *session) one(ctx context.Context, m mutation) {
	began := time.Now()
	err, known := error(nil), s.caught(m)
	if !known {
		err = s.judge(ctx, m)
	}
	if ctx.Err() != nil {
		return // nothing was found out
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case known:
		s.passed++
		fmt.Printf("caught     %s (before)\n", m.Name)
	case err == nil:
		s.passed++
		fmt.Printf("caught     %s (%.0fs)%s\n", m.Name, time.Since(began).Seconds(),
			map[bool]string{true: ": take its mark unproven away"}[m.Unproven])
		if err := s.note(m); err != nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
		}
	case errors.Is(err, errSurvived):
		s.failed++
		fmt.Printf("NOT CAUGHT %s (%.0fs): %s\n           %s: go test -run '%s' %s passes with %q\n", m.Name, time.Since(began).Seconds(), m.Why, m.File, m.Run, m.Package, m.New)
	default:
		s.failed++
		fmt.Printf("FAILED     %s: %v\n", m.Name, err)
	}
}

// report prints the end and says whether all is well.
func (s *session) report(ctx context.Context, chosen int) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("interrupted after %d of %d; the next run goes on from there",
			s.passed+s.failed, chosen)
	}
	if left := chosen - s.passed - s.failed; left > 0 {
		fmt.Printf("mutate: %d of %d had no time in this run\n", left, chosen)
	}
	fmt.Printf("mutate: %s\n%d passed, %d failed\n", time.Since(s.began).Round(time.Second),
		s.passed, s.failed)
	return s.failed == 0 && s.passed > 0, s.journal.end()
}
