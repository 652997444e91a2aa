// Package bench measures what Weft's datapath costs and compares it, in one
// interleaved run, with the paths a container host has without it.
//
// Route is the entry point. It builds one harness of network namespaces per variant and
// shape, runs variant after variant within each repeat so that whatever else the
// machine does hits all of them alike, and reports medians with their spread.
package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/internal/bench/report"
)

// The variants: how the measured node forwards.
const (
	VariantPlain      = "plain"       // no Weft, no rules: the kernel routes
	VariantBare       = "xdp-bare"    // no Weft: the least an XDP forwarder can do; packet-rate tests only
	VariantIPTables   = "iptables"    // no Weft: conntrack, MASQUERADE and 20 rules
	VariantStack      = "stack"       // Weft, mode stack
	VariantTC         = "tc"          // Weft, mode tc
	VariantXDPGeneric = "xdp-generic" // Weft, mode xdp with xdp.generic
	VariantXDP        = "xdp"         // Weft, mode xdp on native drivers
	VariantAuto       = "auto"        // Weft, mode auto, as ordinary pods get it
	VariantAutoXDP    = "auto-xdp"    // Weft, mode auto, pods that ask for the XDP datapath
)

// Variants lists every variant in the order in which they are run and shown.
func Variants() []string {
	return []string{VariantPlain, VariantIPTables, VariantStack, VariantTC, VariantXDPGeneric,
		VariantXDP, VariantAuto, VariantAutoXDP, VariantBare}
}

// DefaultVariants lists what runs when Options.Variants is empty: all but the two
// that are bounds rather than somebody's choice, plain and xdp-bare.
func DefaultVariants() []string {
	return slices.DeleteFunc(Variants(),
		func(v string) bool { return v == VariantPlain || v == VariantBare })
}

// Options say what Route, Encrypt, Mesh or Policy measures. The zero value measures the default
// tests once it knows the weft binary.
type Options struct {
	// Binary is the weft binary whose agent and CNI plugin are measured. Default: beside the
	// running program, else in PATH.
	Binary string
	// Variants and Tests are names from Variants and Tests, or groups of tests
	// (see Groups); for Encrypt those of EncryptVariants, EncryptTests and EncryptGroups, for Mesh
	// those of MeshVariants, MeshTests and MeshGroups, and for Policy those of PolicyVariants,
	// PolicyTests and PolicyGroups. Empty means the defaults.
	Variants []string
	Tests    []string
	// Repeats is how often each test runs per variant. Default 5, with Quick 3.
	Repeats int
	// Duration is the measured time of one run. Default 3 s, with Quick 1 s.
	Duration time.Duration
	// Out receives one line per run as progress; nil means none.
	Out io.Writer
	// Envoy is the binary of Mesh's sidecars. Default: the one in PATH.
	Envoy string
	// Quick shortens the defaults for Repeats and Duration.
	Quick bool
}

// Route runs the chosen tests over the chosen variants and returns the medians.
// It needs root, makes only network namespaces of its own and removes them, also
// when ctx ends early or a test fails.
func Route(ctx context.Context, opts Options) (*report.Report, error) {
	return measure(ctx, routeSuite(), opts)
}

// checkNames refuses names that are not in known, naming the field and what it takes.
func checkNames(field string, names, known []string) error {
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("%s: %q is not known; choose from %s", field, name,
				strings.Join(known, ", "))
		}
	}
	return nil
}
