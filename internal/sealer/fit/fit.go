// Package fit says whether a sealer pays on a host, which is what engine auto goes by.
package fit

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/cpu"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/sealer/control"
	"weft.dev/weft/internal/sibling"
)

// Host is what is asked of a host.
type Host interface {
	// CPUs is how many the agent, and so the sealer, may run on.
	CPUs() int
	// AES says whether they have the instructions that Go's AES-GCM uses.
	AES() bool
	// Sealer is where the agent finds weft-sealer.
	Sealer() (string, error)
}

// System is the host that this process runs on.
type System struct{}

// CPUs implements Host.
func (System) CPUs() int { return runtime.NumCPU() }

// AES implements Host.
func (System) AES() bool {
	return cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ || cpu.ARM64.HasAES && cpu.ARM64.HasPMULL
}

// Sealer implements Host.
func (System) Sealer() (string, error) { return sibling.Find(control.Program) }

// Reason is why engine auto does without a sealer, "" if it runs one.
func Reason(cfg *config.Config, host Host) string {
	e := cfg.Encryption
	switch {
	case cfg.Mode != config.ModeAuto && cfg.Mode != config.ModeTC:
		return fmt.Sprintf("in mode %s the hooks open all that arrives", cfg.Mode)
	case e.PortIsSealers():
		return fmt.Sprintf("encryption.port %d is one of those that sealers send from", e.Port)
	case e.Lanes == config.MaxLanes:
		return fmt.Sprintf("encryption.lanes %d leaves no lane for it", e.Lanes)
	case host.CPUs() < 2:
		return "this host has one CPU, on which a sealer would compete with all else"
	case !host.AES():
		return "this CPU has no AES instructions"
	}
	if _, err := host.Sealer(); err != nil {
		return err.Error()
	}
	return ""
}
