// Package model walks a lab through random sequences of what operators, crashes and hosts do to
// Weft, and holds every step against "absence never means cleartext": nothing of a pod is readable
// on any wire, nothing readable reaches a pod from one, and no interface of a pod or uplink is up
// without its hooks. docs/model-test.md says how to run it longer and replay it.
package model

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"weft.dev/weft/test/labtest"
)

// How many steps a run in CI takes: about two minutes on two cores.
const defaultSteps = 250

var (
	weftBinary string
	labName    = fmt.Sprintf("wm%d", os.Getpid())
	steps      uint64
	seed       uint64
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("SKIP: needs root: network namespaces and eBPF")
		os.Exit(0)
	}
	os.Exit(run(m))
}

// run keeps its deferred calls apart from os.Exit.
func run(m *testing.M) int {
	scratch, err := os.MkdirTemp("", labName+"-")
	if err == nil {
		defer os.RemoveAll(scratch)
		weftBinary, err = labtest.Binary(scratch)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// readEnvironment is for a running test: what TestMain reads, go's cache of results does not know
// of.
func readEnvironment() (err error) {
	if steps, err = number("WEFT_MODEL_STEPS", defaultSteps); err != nil {
		return err
	}
	if seed, err = number("WEFT_MODEL_SEED", uint64(time.Now().UnixNano())); err != nil {
		return err
	}
	favoured = nil
	if text := os.Getenv("WEFT_MODEL_FAVOUR"); text != "" {
		favoured, err = regexp.Compile(text)
	}
	if err == nil && favoured != nil &&
		!slices.ContainsFunc(actions, func(a action) bool { return favoured.MatchString(a.name) }) {
		err = fmt.Errorf("no step has a name like %s", favoured)
	}
	if err != nil {
		return fmt.Errorf("WEFT_MODEL_FAVOUR: %w", err)
	}
	return nil
}

func number(variable string, otherwise uint64) (uint64, error) {
	text := os.Getenv(variable)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", variable, err)
	}
	return n, nil
}
