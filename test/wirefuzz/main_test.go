// Package wirefuzz is a machine on the wire that sends every frame that it can think of at the
// nodes of a lab, and a referee that holds what pods and hosts got against a specification of its
// own (spec_test.go). docs/wire-fuzzer.md says how to run it longer and how to replay one frame.
package wirefuzz

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"weft.dev/weft/test/labtest"
)

var (
	weftBinary string
	labName    = fmt.Sprintf("wf%d", os.Getpid())
	duration   = flag.Duration("wirefuzz.time", 6*time.Second,
		"how long to send random frames in each mode; $WEFT_FUZZ_TIME")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run keeps its deferred calls apart from os.Exit.
func run(m *testing.M) int {
	scratch, err := os.MkdirTemp("", labName+"-")
	if err == nil {
		defer os.RemoveAll(scratch)
		err = readEnvironment()
	}
	if err == nil && os.Geteuid() == 0 { // else only the referee's own tests run
		weftBinary, err = labtest.Binary(scratch)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// The seed of this run, and the only frame to send if replay is set.
var (
	seed   uint64
	replay bool
	only   uint32
)

func readEnvironment() (err error) {
	seed = uint64(time.Now().UnixNano())
	if text := os.Getenv("WEFT_FUZZ_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 0, 64); err != nil {
			return fmt.Errorf("WEFT_FUZZ_SEED: %w", err)
		}
	}
	if text := os.Getenv("WEFT_FUZZ_FRAME"); text != "" {
		number, err := strconv.ParseUint(text, 0, 32)
		if err != nil {
			return fmt.Errorf("WEFT_FUZZ_FRAME: %w", err)
		}
		replay, only = true, uint32(number)
	}
	if text := os.Getenv("WEFT_FUZZ_TIME"); text != "" {
		if *duration, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("WEFT_FUZZ_TIME: %w", err)
		}
	}
	return nil
}
