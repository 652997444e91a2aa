package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weft.dev/weft/internal/bench/mesh"
	"weft.dev/weft/internal/bench/report"
)

// VariantEnvoy is what Mesh compares with: no Weft, the kernel routes, and an Envoy beside each pod
// does mutual TLS. Mesh's other variants are Encrypt's.
const VariantEnvoy = "envoy"

// MeshVariants lists every variant of Mesh in the order in which they are run and shown.
func MeshVariants() []string {
	return []string{
		VariantKernel, VariantUnsealed, VariantEngineBPF, VariantEngineUser, VariantEnvoy,
	}
}

// MeshTests lists every test of Mesh by name.
func MeshTests() []string { return meshSuite(mesh.Tools{}).testNames(false) }

// MeshGroups lists the names that stand for several tests of Mesh.
func MeshGroups() []string { return meshSuite(mesh.Tools{}).groups() }

// Mesh measures HTTP/2 requests between the pods of two nodes, over the chosen variants: what
// Weft's sealing costs beside sidecars that do TLS. VariantEnvoy is left out by default where there
// is no Envoy, which Options.Out is told.
func Mesh(ctx context.Context, opts Options) (*report.Report, error) {
	tools, err := mesh.FindTools(opts.Envoy)
	if err == nil && tools.Envoy == "" && slices.Contains(opts.Variants, VariantEnvoy) {
		err = mesh.ErrNoEnvoy
	}
	if err != nil {
		return nil, fmt.Errorf("bench mesh: %w", err)
	}
	if tools.Envoy == "" && len(opts.Variants) == 0 && opts.Out != nil {
		fmt.Fprintf(opts.Out, "variant %s skipped: %v\n", VariantEnvoy, mesh.ErrNoEnvoy)
	}
	return measure(ctx, meshSuite(tools), opts)
}

// meshSuite is what Mesh measures with these tools.
func meshSuite(tools mesh.Tools) *suite {
	return &suite{
		variants: MeshVariants(), tests: meshTests(), view: meshView,
		defaults: func() []string {
			return slices.DeleteFunc(MeshVariants(), func(v string) bool {
				return v == VariantEnvoy && tools.Envoy == ""
			})
		},
		isWeft: func(v string) bool {
			return !slices.Contains([]string{VariantKernel, VariantEnvoy, report.Generator}, v)
		},
		suits: func(_ test, variant string) bool { return variant != report.Generator },
		build: func(ctx context.Context, binary, variant string, s shape) (*harness, error) {
			return buildMeshHarness(ctx, tools, binary, variant, s)
		},
	}
}

// meshTests lists every test of Mesh. At a given rate only the body of 1 KiB is measured by
// default: the largest needs more than every variant can carry.
func meshTests() []test {
	var tests []test
	for _, l := range mesh.Loads() {
		group := "max"
		if l.Rate > 0 {
			group = "rate"
		}
		run := func(ctx context.Context, b *harness, dur time.Duration) (report.Sample, error) {
			return b.mesh.Measure(ctx, l, dur)
		}
		tests = append(tests, test{
			name: l.Name(), group: group, shape: shapePair, run: run,
			extra: l.Rate > 0 && l.KiB != 1,
		})
	}
	return tests
}

// buildMeshHarness builds a variant's harness and starts server and sidecars in it.
func buildMeshHarness(
	ctx context.Context, tools mesh.Tools, binary, variant string, s shape,
) (b *harness, err error) {
	if variant == VariantEnvoy {
		b, err = newPlainHarness(ctx, variant, s)
	} else {
		b, err = buildEncryptHarness(ctx, binary, variant, s)
	}
	if err != nil {
		return nil, err
	}
	from, to := remote(b)
	dir := fmt.Sprintf("%s%d-mesh-%s", namePrefix, os.Getpid(), variant)
	b.mesh, err = mesh.Start(ctx, mesh.Options{
		Tools: tools, From: from.peer(), To: to.peer(), Sidecars: variant == VariantEnvoy,
		Dir: filepath.Join(os.TempDir(), dir),
	})
	network := b.close
	b.close = func(ctx context.Context) error {
		var err error
		if b.mesh != nil {
			err = b.mesh.Close()
		}
		return errors.Join(err, network(ctx))
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err = errors.Join(err, b.close(clean))
		return nil, fmt.Errorf("build harness %s/%s: %w", variant, s, err)
	}
	return b, nil
}

// meshView shows Mesh's report. Ratios are against the sidecars, and against the kernel's own
// routing.
var meshView = &report.View{
	Title: "Weft: HTTP/2 between two pods", Order: MeshVariants(),
	References: []report.Reference{report.Always(VariantEnvoy), report.Always(VariantKernel)},
	Colours: map[string]string{
		VariantKernel: "#9a9a9a", VariantUnsealed: "#9fd9c7", VariantEngineBPF: "#009e73",
		VariantEngineUser: "#cc79a7", VariantEnvoy: "#e69f00",
	},
	Legends: map[string]string{
		VariantKernel: "kernel", VariantUnsealed: "Weft plain",
		VariantEngineBPF: "Weft sealed, bpf", VariantEngineUser: "Weft sealed, user",
		VariantEnvoy: "Envoy sidecars, mutual TLS",
	},
	Panels: mesh.Panels(),
}
