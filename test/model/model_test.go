package model

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// wholeEvery is about how many steps pass until everything is put in order.
const wholeEvery = 20

// TestAbsenceNeverMeansCleartext walks; see the package.
func TestAbsenceNeverMeansCleartext(t *testing.T) {
	if err := readEnvironment(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d steps with WEFT_MODEL_SEED=%d WEFT_MODEL_FAVOUR='%s'", steps, seed,
		os.Getenv("WEFT_MODEL_FAVOUR"))
	w := newWorld(t)
	if err := w.makeWhole(); err != nil {
		w.fail("at first", err)
	}
	begin := time.Now()
	for w.step = 1; w.step <= int(steps); w.step++ {
		if err := w.walk(); err != nil {
			w.fail("", err)
		}
	}
	w.did("whole, at the end")
	if err := w.makeWhole(); err != nil {
		w.fail("", err)
	}
	if err := errors.Join(w.sealerSeals(), w.check()); err != nil {
		w.fail("", err)
	}
	report := w.watch.report()
	var rounds, forged int
	w.prober.with(func() { rounds, forged = w.prober.rounds, int(w.prober.sent) })
	t.Logf("%d steps in %s; %d rounds, %d forged frames; on the wires %d frames, %d sealed, %d as a policy allows",
		steps, time.Since(begin).Round(time.Second), rounds, forged, report.Frames, report.Sealed,
		report.Allowed)
	if report.Sealed == 0 || forged == 0 {
		t.Error("nothing was sealed or forged: this run proves nothing")
	}
}

// walk is one step, and what must hold after it.
func (w *world) walk() error {
	w.prober.with(func() { w.prober.step = w.step })
	if w.step%wholeEvery == 0 {
		w.did("whole")
		if err := w.makeWhole(); err != nil {
			return err
		}
		return w.check()
	}
	a, h := w.choose()
	w.did(a.name + " at " + h.Name)
	begin := time.Now()
	note, err := a.do(w, h)
	w.history[len(w.history)-1] += fmt.Sprintf(": %s (%s)", note,
		time.Since(begin).Round(time.Millisecond))
	if err != nil {
		return err
	}
	// Some steps come at once, before the agents have taken notice, some after.
	for until := time.Now().Add(time.Duration(w.rand.IntN(150)) * time.Millisecond); time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
	}
	return w.check()
}

// check holds everything that must hold at any time.
func (w *world) check() error {
	w.lookReady()
	w.settlePlain()
	if err := w.checkHooks(); err != nil {
		return err
	}
	w.prober.round(1)
	if err := w.watch.settle(); err != nil {
		return err
	}
	w.prober.round(16) // listens, too
	if wrong := append(w.watch.violations(), w.prober.violations()...); len(wrong) > 0 {
		return fmt.Errorf("%d violations, the first:\n  %s", len(wrong),
			strings.Join(wrong[:min(len(wrong), 8)], "\n  "))
	}
	return nil
}

func (w *world) did(what string) {
	w.history = append(w.history, fmt.Sprintf("%d: %s", w.step, what))
}

// fail ends the test with all that is needed to see what happened and to have it again.
func (w *world) fail(where string, err error) {
	w.t.Helper()
	for _, h := range w.hosts {
		text, _ := os.ReadFile(h.LogFile)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		w.t.Logf("the last lines of agent %s:\n  %s", h.Name,
			strings.Join(lines[max(0, len(lines)-25):], "\n  "))
	}
	for _, h := range w.hosts {
		w.t.Logf("the routes of node %s:\n  %s", h.Name, w.routes(h))
	}
	w.t.Logf("the last steps:\n  %s", strings.Join(w.history[max(0, len(w.history)-30):], "\n  "))
	w.t.Fatalf("step %d %s: %v\nagain: WEFT_MODEL_SEED=%d WEFT_MODEL_FAVOUR='%s' WEFT_MODEL_STEPS=%d go test -count=1 ./test/model -v", w.step, where, err, seed, os.Getenv("WEFT_MODEL_FAVOUR"), w.step)
}
