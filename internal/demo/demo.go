// Package demo tells Weft's story with real output: it builds a lab, shows what the wire
// shows and who reaches whom, kills an agent and changes keys under running streams, forges
// packets, traces one, measures, and takes everything away again. Every figure it prints comes from
// the run at hand.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/sibling"
)

// DefaultLab is the name of the demo's lab, apart from the one that `weft lab up` builds.
const DefaultLab = "weftdemo"

// downLimit bounds the removal of the lab, also of an interrupted demo's.
const downLimit = 3 * time.Minute

// Options say how the demo runs.
type Options struct {
	// Binary is the weft binary that is shown. Default: beside the running program, else in PATH.
	Binary string
	// Lab is the name of the lab that is built. Default: DefaultLab.
	Lab string
	// Dir is where report.json and report.html are written; empty means nowhere.
	Dir string
	// Out takes the story; nil means nobody.
	Out io.Writer
	// Progress takes the benchmark's line per run; nil means nobody.
	Progress io.Writer
	// SkipBench leaves the benchmark out.
	SkipBench bool
}

// demo is one run.
type demo struct {
	*story
	opts Options
	lab  *lab.Lab
	// measured is what the benchmark has measured so far.
	measured report.Report
}

// step is one chapter. Its error becomes a failed check of its name; the demo goes on.
type step struct {
	name, title string
	limit       time.Duration
	needsLab    bool
	do          func(ctx context.Context) error
}

// Run tells the story. Failed checks are in the report; the error is for a demo that
// could not be held at all or whose report could not be written. When ctx ends early,
// what was built is taken away all the same.
func Run(ctx context.Context, opts Options) (*Report, error) {
	d, err := prepare(opts)
	if err != nil {
		return nil, err
	}
	// Held by the kernel until we end, however we end, and nothing to clean up.
	lock, err := net.Listen("unix", "@weft-demo-"+d.opts.Lab)
	if err != nil {
		return nil, fmt.Errorf("another demo builds the lab %s right now: wait for it, or choose another name with --lab (%w)", d.opts.Lab, err)
	}
	defer lock.Close()
	began := time.Now()
	d.opening()
	d.tell(ctx)
	d.section("Everything taken away")
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), downLimit)
	defer cancel()
	d.takeAway(clean)
	if ctx.Err() != nil {
		d.check("finished", false, "interrupted: not everything was shown")
	}
	report := &Report{Checks: d.checks, Route: routeOf(&d.measured)}
	d.closing(report, time.Since(began))
	if err := writeReports(d.opts.Dir, report, d.page(report, began)); err != nil {
		return report, err
	}
	return report, nil
}

// prepare checks the options and what the demo needs before anything is built.
func prepare(opts Options) (*demo, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the demo builds network namespaces and loads eBPF programs: run it as root (sudo make demo)")
	}
	if opts.Lab == "" {
		opts.Lab = DefaultLab
	}
	if opts.Out == nil {
		opts.Out = io.Discard
	}
	if opts.Binary == "" {
		var err error
		if opts.Binary, err = sibling.Find("weft"); err != nil {
			return nil, err
		}
	}
	if err := prepareDir(opts.Dir); err != nil {
		return nil, err
	}
	return &demo{story: newStory(opts.Out), opts: opts}, nil
}

// tell goes through the chapters.
func (d *demo) tell(ctx context.Context) {
	defer d.downAfterPanic()
	for _, s := range d.steps() {
		if ctx.Err() != nil {
			return
		}
		d.section(s.title)
		if s.needsLab && d.lab == nil {
			d.check(s.name, false, "not tried: there is no lab")
			continue
		}
		limited, cancel := context.WithTimeoutCause(ctx, s.limit,
			fmt.Errorf("took longer than %s", s.limit))
		if err := s.do(limited); err != nil && ctx.Err() == nil {
			if cause := context.Cause(limited); cause != nil {
				err = fmt.Errorf("%w: %w", cause, err)
			}
			d.check(s.name, false, "%v", err)
		}
		cancel()
	}
}

// downAfterPanic takes the lab away before a mistake of ours ends the program.
func (d *demo) downAfterPanic() {
	if broken := recover(); broken != nil {
		if d.lab != nil {
			ctx, cancel := context.WithTimeout(context.Background(), downLimit)
			defer cancel()
			_ = d.lab.Down(ctx)
		}
		panic(broken)
	}
}

func (d *demo) steps() []step {
	steps := []step{
		{name: "lab", title: "Two nodes, four pods", limit: 3 * time.Minute, do: d.topology},
		{name: "wire", title: "What the wire shows", limit: 3 * time.Minute, needsLab: true,
			do: d.wire},
		{name: "reach", title: "Who reaches whom", limit: 2 * time.Minute, needsLab: true,
			do: d.reach},
		{name: "kill9", title: "The agent is killed, traffic goes on", limit: 2 * time.Minute,
			needsLab: true, do: d.killAgent},
		{name: "restart", title: "The agent is restarted, traffic goes on", limit: 2 * time.Minute,
			needsLab: true, do: d.restartAgent},
		{name: "rotate", title: "All keys change, traffic goes on", limit: 3 * time.Minute,
			needsLab: true, do: d.rotate},
		{name: "intrude",
			title: "Forged and replayed packets on the wire are refused, each with a reason of its own", limit: time.Minute, needsLab: true, do: d.intrude},
		{name: "spoofed",
			title: "Forged packets of a pod are refused, each with a reason of its own",
			limit: time.Minute, needsLab: true, do: d.forge},
		{name: "trace", title: "What would happen to a packet", limit: time.Minute, needsLab: true,
			do: d.trace},
	}
	if !d.opts.SkipBench {
		steps = append(steps,
			step{name: "route", title: "How fast it is", limit: 205 * time.Second, do: d.route})
	}
	return steps
}
