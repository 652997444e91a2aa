// Package bpf holds the compiled BPF objects, the Go side of what their C headers define, and the
// pinned maps that an instance's programs share.
package bpf

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	stdmaps "maps"
	"math/rand/v2"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

//go:embed obj/*_xdp.o obj/*_tc.o obj/vmfork.o obj/source_filter.o obj/sealer_gro.o
var embedded embed.FS

// Objects is where BPF objects come from; a test may put others there.
var Objects fs.FS = embedded

// LoadSpec reads an object by its name, such as from_pod_xdp.
func LoadSpec(object string) (*ebpf.CollectionSpec, error) {
	file, err := Objects.Open("obj/" + object + ".o")
	if err != nil {
		return nil, fmt.Errorf("open BPF object %s: %w", object, err)
	}
	defer file.Close()
	spec, err := ebpf.LoadCollectionSpecFromReader(file.(interface {
		fs.File
		ReadAt([]byte, int64) (int, error)
	}))
	if err != nil {
		return nil, fmt.Errorf("read BPF object %s: %w", object, err)
	}
	return spec, nil
}

// weights are what the programs tell cached decisions and fragments' senders by (bpf/lib/flow.h):
// the same for all programs that share maps, and unknown to those whose packets they see. Decisions
// that another agent's programs have cached are made anew.
var weights = sync.OnceValue(func() (w [11]uint64) {
	for i := range w {
		w[i] = rand.Uint64() | 1 // ChaCha8, seeded by the system
	}
	return w
})

// Load loads one program on the shared maps, with constants set. frags lets XDP see frames larger
// than a page. The caller closes the collection.
func Load(m *Maps, object, program string, constants map[string]any,
	frags bool) (*ebpf.Collection, error) {
	spec, err := LoadSpec(object)
	if err != nil {
		return nil, err
	}
	all := map[string]any{"weft_weights": weights()}
	stdmaps.Copy(all, constants)
	for name, value := range all {
		variable, ok := spec.Variables[name]
		if !ok {
			continue // not used in this program, so the compiler left it out
		}
		if err := variable.Set(value); err != nil {
			return nil, fmt.Errorf("set %s in %s: %w", name, object, err)
		}
	}
	if ps := spec.Programs[program]; ps != nil && frags && ps.Type == ebpf.XDP {
		ps.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	collection, err := ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{MapReplacements: m.SharedWith(spec)})
	if err != nil {
		err = NotAllowed(err)
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) {
			return nil, fmt.Errorf("load %s: %w (the kernel's verifier refused it; kernel 6.6 or later is needed)", object, err)
		}
		return nil, fmt.Errorf("load %s: %w", object, err)
	}
	return collection, nil
}

// Flag is a bool as the programs' constants have it.
func Flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
