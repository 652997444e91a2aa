package flowtable

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

const sweepEvery = 30 * time.Second

// sweepCells is how many cells one run of the sweep looks at: some milliseconds of one CPU.
const sweepCells = 1 << 15

// request is struct flow_request of bpf/flows.bpf.c.
type request struct {
	Family         uint32
	From, Count    uint32
	Freed, Adopted uint32
	Key4           bpf.Key4
	Key6           bpf.Key6
}

// run runs one of the programs; the kernel writes the request back.
func (t *Table) run(program string, r *request) error {
	attr := struct {
		ProgFD, Retval, DataSizeIn, DataSizeOut uint32
		DataIn, DataOut                         uint64
		Repeat, Duration, CtxSizeIn, CtxSizeOut uint32
		CtxIn                                   unsafe.Pointer
		CtxOut                                  uint64
		Flags, CPU, BatchSize, Pad              uint32
	}{ProgFD: uint32(t.collection.Programs[program].FD()), CtxIn: unsafe.Pointer(r),
		CtxSizeIn: uint32(unsafe.Sizeof(*r))}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return fmt.Errorf("run %s: %w", program, errno)
	}
	return nil
}

// SweepSoon has cells of flows that are gone freed without waiting for the next turn.
func (t *Table) SweepSoon() {
	select {
	case t.soon <- struct{}{}:
	default:
	}
}

// clearOwners zeroes what was counted for both of a slot's owners.
func (t *Table) clearOwners(slot uint16) error {
	var err error
	for direction := range bpf.DirectionNames {
		err = errors.Join(err,
			t.run("weft_owner_clear", &request{From: OwnerIndex(slot, direction)}))
	}
	return err
}

// Sweep frees the cells of flows that are gone and says how many those were.
func (t *Table) Sweep(entries uint32) (freed uint32, err error) {
	for _, family := range []uint32{4, 6} {
		for from := uint32(0); from < entries; from += sweepCells {
			r := request{Family: family, From: from, Count: min(sweepCells, entries-from)}
			err = errors.Join(err, t.run("weft_flow_sweep", &r))
			freed += r.Freed
		}
	}
	return freed, err
}

func (t *Table) sweepAll() {
	if _, err := t.Sweep(t.maps.Cells4.MaxEntries()); err != nil {
		t.log.Warn("free places in the flow table", "err", err)
	}
}

// OwnerIndex is where an owner is in weft_owners.
func OwnerIndex(slot uint16, direction int) uint32 { return uint32(slot)<<1 | uint32(direction) }

// Budgets reads what the endpoints of these slots, and the node itself (slot 0), hold and were
// refused. Rows that are zero are left out.
func (t *Table) Budgets(slots []uint16) ([]Budget, error) {
	var rows []Budget
	for _, slot := range slots {
		for direction, name := range bpf.DirectionNames {
			var o bpf.Owner
			if err := t.maps.Owners.Lookup(OwnerIndex(slot, direction), &o); err != nil {
				return nil, fmt.Errorf("read owners map: %w", err)
			}
			if o != (bpf.Owner{}) {
				rows = append(rows, Budget{
					Slot: slot, Direction: name, Flows: o.Flows[0] + o.Flows[1],
					FlowsEvicted: o.FlowsEvicted, FlowsRefused: o.FlowsRefused,
					FragmentsEvicted: o.FragmentsEvicted, EventsSuppressed: o.EventsSuppressed,
					ErrorsSuppressed: o.ErrorsSuppressed,
				})
			}
		}
	}
	return rows, nil
}

// Adopt gives every flow of a table that was made anew, or copied from one of another size, its
// place. No program of this version runs yet, and those of the last have tables of their own.
func (t *Table) Adopt() error {
	created := t.maps.Created
	if !created["weft_cells4"] && !created["weft_cells6"] && !created["weft_owners"] {
		// Flows of another layout are forgotten. Until their places are freed, they count against
		// their owners.
		if created["weft_flows4"] || created["weft_flows6"] {
			_, err := t.Sweep(t.maps.Cells4.MaxEntries())
			return err
		}
		return nil
	}
	for name, m := range map[string]*ebpf.Map{"weft_cells4": t.maps.Cells4,
		"weft_cells6": t.maps.Cells6, "weft_owners": t.maps.Owners} {
		if created[name] {
			continue
		}
		if err := bpf.ZeroArray(m); err != nil {
			return err
		}
	}
	var lost []Row
	err := t.Each(func(f Row) bool {
		r := request{Family: 4}
		switch key := f.Key.(type) {
		case *bpf.Key4:
			r.Key4 = *key
		case *bpf.Key6:
			r.Family, r.Key6 = 6, *key
		}
		if err := t.run("weft_flow_adopt", &r); err != nil || r.Adopted == 0 {
			lost = append(lost, f)
		}
		return true
	})
	for _, f := range lost {
		err = errors.Join(err, bpf.DeleteKey(f.Map, f.Key))
	}
	return err
}
