package esp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"weft.dev/weft/internal/datapath/bpf"
)

// VMForkStatus says how it is noticed that this virtual machine was forked: resumed from a snapshot
// with memory, or copied. The counters of SAs went back with the memory then, so no earlier key may
// be used again.
type VMForkStatus struct {
	// Detection is fentry (the kernel voids the keys itself), log (the agent does, when the kernel
	// has logged the fork), clock (the agent does, when the wall clock jumps ahead) or none (not a
	// virtual machine).
	Detection string `json:"detection"`
	Why       string `json:"why"`
	// Generation counts the forks that were noticed.
	Generation uint64 `json:"generation"`
}

// The ways in which forks are noticed.
const (
	VMForkFentry = "fentry"
	VMForkLog    = "log"
	VMForkClock  = "clock"
	VMForkNone   = "none"
)

// ErrVMForked says that keys are of before a fork of this virtual machine.
var ErrVMForked = errors.New("this machine was resumed from a snapshot or copied since these keys were agreed on: new ones are needed")

// ForkPin is the name of the pin, in Host.PinDir, that keeps the program running while no agent
// does.
const ForkPin = "vmfork"

// vmFork is what notices forks; one of events and log, or neither.
type vmFork struct {
	status VMForkStatus
	events *ebpf.Map
	log    *kernelLog
}

// openVMFork begins to watch for forks in the best way that this machine has. What happened while
// nobody watched is counted now, as far as it can be known.
func (a *Associations) openVMFork() error {
	if why := noVMGenerationID(); why != "" {
		a.fork.status = VMForkStatus{Detection: VMForkNone, Why: "this is no virtual machine"}
		if isVirtual() {
			a.fork.status = VMForkStatus{Detection: VMForkClock, Why: why}
		}
		return nil
	}
	events, err := a.attachVMFork()
	if err == nil {
		a.fork.events = events
		a.fork.status = VMForkStatus{Detection: VMForkFentry,
			Why: "the kernel's VM generation ID driver is traced"}
		return nil
	}
	log, logErr := openKernelLog(kernelLogPath)
	if logErr != nil {
		a.fork.status = VMForkStatus{Detection: VMForkClock,
			Why: fmt.Sprintf("tracing: %v; the kernel's log: %v", err, logErr)}
		a.log.Warn("forks of this virtual machine are noticed late: only by jumps of its clock",
			"tracing", err, "log", logErr)
		return nil
	}
	a.fork.log = log
	a.fork.status = VMForkStatus{Detection: VMForkLog,
		Why: fmt.Sprintf("the kernel does not let its VM generation ID driver be traced: %v", err)}
	seq, err := log.history()
	if err != nil {
		return fmt.Errorf("look for forks of this virtual machine: %w", err)
	}
	return a.countLogged(seq)
}

// attachVMFork pins the program, in the place of a former agent's: both run for a moment, which
// counts a fork twice.
func (a *Associations) attachVMFork() (*ebpf.Map, error) {
	collection, err := bpf.Load(a.maps, "vmfork", "weft_vmfork", nil, false)
	if err != nil {
		return nil, err
	}
	defer collection.Close()
	attached, err := link.AttachTracing(link.TracingOptions{Program: collection.Programs["weft_vmfork"]})
	if err != nil {
		return nil, fmt.Errorf("trace add_vmfork_randomness: %w", err)
	}
	defer attached.Close()
	path := filepath.Join(a.host.PinDir, ForkPin)
	if err := os.Remove(path + "-new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove a half-made pin: %w", err)
	}
	if err := attached.Pin(path + "-new"); err != nil {
		return nil, fmt.Errorf("pin the trace of add_vmfork_randomness: %w", err)
	}
	if err := os.Rename(path+"-new", path); err != nil {
		return nil, fmt.Errorf("pin the trace of add_vmfork_randomness: %w", err)
	}
	return collection.Maps["weft_vm_events"].Clone()
}

func (f *vmFork) close() {
	if f.events != nil {
		f.events.Close()
	}
	if f.log != nil {
		f.log.Close()
	}
}

// VMForkStatus says how forks of this virtual machine are noticed, and how many were.
func (a *Associations) VMForkStatus() VMForkStatus {
	status := a.fork.status
	status.Generation, _ = a.VMGeneration()
	return status
}

// VMGeneration is the number that keys carry which may be used now. Whoever agrees on keys asks
// before anything of them exists, so that a fork in between voids them.
func (a *Associations) VMGeneration() (uint64, error) {
	vm, err := a.readVM()
	return vm.Generation, err
}

func (a *Associations) readVM() (vm bpf.Vm, err error) {
	if err := a.maps.VM.Lookup(uint32(0), &vm); err != nil {
		return vm, fmt.Errorf("read the VM's generation: %w", err)
	}
	return vm, nil
}

// VMForks watches until ctx ends. It destroys the keys that a fork has voided, and then calls
// forked.
func (a *Associations) VMForks(ctx context.Context, forked func()) error {
	retire := func() error {
		retired, err := a.retireForked()
		if retired > 0 {
			a.log.Error("this virtual machine was resumed from a snapshot or copied: its keys are destroyed", "keys", retired)
			forked()
		}
		return err
	}
	// One that came between Open and now.
	if err := retire(); err != nil {
		return err
	}
	switch {
	case a.fork.events != nil:
		return followVMForkRing(ctx, a.fork.events, retire)
	case a.fork.log != nil:
		return a.fork.log.follow(ctx,
			func(seq uint64) error { return errors.Join(a.countLogged(seq), retire()) })
	}
	<-ctx.Done()
	return nil
}

func followVMForkRing(ctx context.Context, events *ebpf.Map, retire func() error) error {
	reader, err := ringbuf.NewReader(events)
	if err != nil {
		return fmt.Errorf("open the ring of VM forks: %w", err)
	}
	defer reader.Close()
	defer context.AfterFunc(ctx, func() { reader.Close() })()
	for {
		record, err := reader.Read()
		if errors.Is(err, ringbuf.ErrClosed) {
			return nil
		}
		if err != nil || len(record.RawSample) < binary.Size(uint64(0)) {
			return fmt.Errorf("read the ring of VM forks (%d bytes): %w", len(record.RawSample),
				err)
		}
		if err := retire(); err != nil {
			return err
		}
	}
}

// DeclareVMFork voids and destroys all keys, as a fork does.
func (a *Associations) DeclareVMFork() error {
	if err := a.countFork(func(vm *bpf.Vm) bool { return true }); err != nil {
		return err
	}
	_, err := a.retireForked()
	return err
}

// countLogged counts a fork that the kernel has logged, if it was not counted yet. There are no
// keys yet in a map that was just made, so what is older than that does not count.
func (a *Associations) countLogged(seq uint64) error {
	return a.countFork(func(vm *bpf.Vm) bool {
		fresh := *vm == bpf.Vm{}
		news := seq > vm.LogSeq
		vm.LogSeq = max(vm.LogSeq, seq)
		return news && !fresh
	})
}

func (a *Associations) countFork(news func(*bpf.Vm) bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	vm, err := a.readVM()
	if err != nil {
		return err
	}
	if news(&vm) {
		vm.Generation++
	}
	if err := a.maps.VM.Put(uint32(0), &vm); err != nil {
		return fmt.Errorf("write the VM's generation: %w", err)
	}
	return nil
}

// retireForked destroys every SA that a fork has voided, and stops sending with it: no_key then has
// the agent asked for others. It returns how many there were.
func (a *Associations) retireForked() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return 0, err
	}
	vm, err := a.readVM()
	if err != nil {
		return 0, err
	}
	retired := 0
	for _, out := range []bool{true, false} {
		var stale []uint32
		err := a.eachSA(out, func(id uint32, sa *entry) {
			if sa.vmGeneration != vm.Generation {
				stale = append(stale, id)
			}
		})
		for _, id := range stale {
			if out {
				err = errors.Join(err, a.stopSealing(id>>10, uint8(id>>6&maxEpoch)))
			}
		}
		if err := errors.Join(err, a.retire(out, stale)); err != nil {
			return retired, fmt.Errorf("destroy keys of before a fork of this VM: %w", err)
		}
		retired += len(stale)
	}
	return retired, nil
}

// noVMGenerationID says why forks cannot be noticed by the VM generation ID, "" if they can.
func noVMGenerationID() string {
	bound, _ := filepath.Glob("/sys/bus/*/drivers/vmgenid/*[:.]*")
	if len(bound) > 0 {
		return ""
	}
	return "this machine has no VM generation ID device, or the kernel no driver for it (vmgenid)"
}

// isVirtual says whether this may be a virtual machine: x86 says so, of others it is not known.
func isVirtual() bool {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return true
	}
	flags := strings.Contains(string(cpu), "\nflags\t")
	return !flags || strings.Contains(string(cpu), " hypervisor ")
}
