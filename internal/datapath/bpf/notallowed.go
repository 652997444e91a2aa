package bpf

import (
	"strings"
)

// memlockGuess is what the library says to every EPERM. The kernels that Weft runs on charge BPF to
// the memory cgroup and never look at that limit: whoever raised it would find nothing changed.
const memlockGuess = "(MEMLOCK may be too low, consider rlimit.RemoveMemlock)"

// NotAllowed says in the guess's place what it can be.
func NotAllowed(err error) error {
	if err == nil || !strings.Contains(err.Error(), memlockGuess) {
		return err
	}
	return &refusedLoad{err}
}

type refusedLoad struct{ err error }

func (r *refusedLoad) Error() string {
	return strings.ReplaceAll(r.err.Error(), memlockGuess,
		"(CAP_BPF, CAP_PERFMON or CAP_NET_ADMIN is missing, or the kernel is locked down)")
}

func (r *refusedLoad) Unwrap() error { return r.err }
