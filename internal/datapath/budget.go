package datapath

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// Budget is what one endpoint holds of the tables that all share, and what its share refused it. What an endpoint
// began itself (egress) and what others began towards it (ingress) have a budget each.
type Budget struct {
	Slot      uint16 `json:"slot"`
	Direction string `json:"direction"`
	// Flows is how many flows it holds now.
	Flows uint32 `json:"flows"`
	// FlowsEvicted gave way to new ones before their time, FlowsRefused were not remembered.
	FlowsEvicted uint64 `json:"flowsEvicted"`
	FlowsRefused uint64 `json:"flowsRefused"`
	// FragmentsEvicted are datagrams forgotten before their fragments can have come.
	FragmentsEvicted uint64 `json:"fragmentsEvicted"`
	// EventsSuppressed and ErrorsSuppressed (ICMP) are events and errors that were not sent.
	EventsSuppressed uint64 `json:"eventsSuppressed"`
	ErrorsSuppressed uint64 `json:"errorsSuppressed"`
}

// Lost says which traffic the budget cost its endpoint: flows and fragments. "" when none.
func (b Budget) Lost() string {
	var parts []string
	for _, part := range []struct {
		count uint64
		what  string
	}{{b.FlowsEvicted, "flows evicted"}, {b.FlowsRefused, "flows not remembered"}, {b.FragmentsEvicted, "fragmented datagrams forgotten"}} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.count, part.what))
		}
	}
	return strings.Join(parts, ", ")
}

const sweepEvery = 30 * time.Second

// sweepCells is how many cells one run of the sweep looks at: some milliseconds of one CPU.
const sweepCells = 1 << 15

// flowTable runs the programs of bpf/flows.bpf.c.
type flowTable struct {
	collection *ebpf.Collection
	soon       chan struct{}
}

// flowRequest is struct flow_request there.
type flowRequest struct {
	Family         uint32
	From, Count    uint32
	Freed, Adopted uint32
	Key4           bpf.Key4
	Key6           bpf.Key6
}

func (t *flowTable) open(m *bpf.Maps) error {
	spec, err := bpf.LoadSpec("flows_xdp")
	if err != nil {
		return err
	}
	if t.collection, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: m.SharedWith(spec)}); err != nil {
		return fmt.Errorf("load the flow table's programs: %w", bpf.NotAllowed(err))
	}
	t.soon = make(chan struct{}, 1)
	return nil
}

func (t *flowTable) close() {
	if t.collection != nil {
		t.collection.Close()
	}
}

// run runs one of the programs; the kernel writes the request back.
func (t *flowTable) run(program string, r *flowRequest) error {
	attr := struct {
		ProgFD, Retval, DataSizeIn, DataSizeOut uint32
		DataIn, DataOut                         uint64
		Repeat, Duration, CtxSizeIn, CtxSizeOut uint32
		CtxIn                                   unsafe.Pointer
		CtxOut                                  uint64
		Flags, CPU, BatchSize, Pad              uint32
	}{ProgFD: uint32(t.collection.Programs[program].FD()), CtxIn: unsafe.Pointer(r), CtxSizeIn: uint32(unsafe.Sizeof(*r))}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return fmt.Errorf("run %s: %w", program, errno)
	}
	return nil
}

// sweepSoon has cells of flows that are gone freed without waiting for the next turn.
func (t *flowTable) sweepSoon() {
	select {
	case t.soon <- struct{}{}:
	default:
	}
}

// clear zeroes what was counted for both of a slot's owners.
func (t *flowTable) clear(slot uint16) error {
	var err error
	for direction := range bpf.DirectionNames {
		err = errors.Join(err, t.run("weft_owner_clear", &flowRequest{From: ownerIndex(slot, direction)}))
	}
	return err
}

// sweep frees the cells of flows that are gone and says how many those were.
func (t *flowTable) sweep(entries uint32) (freed uint32, err error) {
	for _, family := range []uint32{4, 6} {
		for from := uint32(0); from < entries; from += sweepCells {
			r := flowRequest{Family: family, From: from, Count: min(sweepCells, entries-from)}
			err = errors.Join(err, t.run("weft_flow_sweep", &r))
			freed += r.Freed
		}
	}
	return freed, err
}

// dropClaim forgets which link-local address the slot's endpoint has claimed.
func (d *Datapath) dropClaim(slot uint16) error {
	var claim bpf.Claim
	if err := d.maps.Claims.Lookup(uint32(slot), &claim); err != nil {
		return fmt.Errorf("read claims map: %w", err)
	}
	if claim.Born == 0 {
		return nil
	}
	err := bpf.DeleteKey(d.maps.Claimed, &claim.Addr)
	return errors.Join(err, d.maps.Claims.Put(uint32(slot), &bpf.Claim{}))
}

func (d *Datapath) sweepFlows() {
	if _, err := d.table.sweep(d.maps.Cells4.MaxEntries()); err != nil {
		d.log.Warn("free places in the flow table", "err", err)
	}
}

// setShares divides the flow table and the events among the endpoints that there are and the node, each with two
// owners, and returns the share of flows. Callers hold d.mu and call changed.
func (d *Datapath) setShares() uint32 {
	owners := uint32(2 * (len(d.eps) + 1))
	d.config.FlowShare = max(1, d.maps.Cells4.MaxEntries()/(owners+1))
	d.config.EventsShare = (d.opts.EventsPerSecond + owners - 1) / owners
	return d.config.FlowShare
}

// FlowShare is how many flows, per family, each endpoint and direction never loses to another.
func (d *Datapath) FlowShare() uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config.FlowShare
}

func ownerIndex(slot uint16, direction int) uint32 { return uint32(slot)<<1 | uint32(direction) }

// Budgets reads what every attached endpoint and the node itself (slot 0) hold and were refused. Rows that are zero
// are left out.
func (d *Datapath) Budgets() ([]Budget, error) {
	var rows []Budget
	for _, slot := range d.slots() {
		for direction, name := range bpf.DirectionNames {
			var o bpf.Owner
			if err := d.maps.Owners.Lookup(ownerIndex(slot, direction), &o); err != nil {
				return nil, fmt.Errorf("read owners map: %w", err)
			}
			if o != (bpf.Owner{}) {
				rows = append(rows, Budget{
					Slot: slot, Direction: name, Flows: o.Flows[0] + o.Flows[1], FlowsEvicted: o.FlowsEvicted, FlowsRefused: o.FlowsRefused,
					FragmentsEvicted: o.FragmentsEvicted, EventsSuppressed: o.EventsSuppressed, ErrorsSuppressed: o.ErrorsSuppressed,
				})
			}
		}
	}
	return rows, nil
}

// slots lists those of the attached endpoints and the node's own.
func (d *Datapath) slots() []uint16 {
	d.mu.Lock()
	defer d.mu.Unlock()
	slots := []uint16{0}
	for slot := range d.eps {
		slots = append(slots, slot)
	}
	return slots
}

// adoptFlows gives every flow of a table that was made anew, or copied from one of another size, its place. No
// program of this version runs yet, and those of the last have tables of their own.
func (d *Datapath) adoptFlows() error {
	created := d.maps.Created
	if !created["weft_cells4"] && !created["weft_cells6"] && !created["weft_owners"] {
		// Flows of another layout are forgotten. Until their places are freed, they count against their owners.
		if created["weft_flows4"] || created["weft_flows6"] {
			_, err := d.table.sweep(d.maps.Cells4.MaxEntries())
			return err
		}
		return nil
	}
	for name, m := range map[string]*ebpf.Map{"weft_cells4": d.maps.Cells4, "weft_cells6": d.maps.Cells6, "weft_owners": d.maps.Owners} {
		if created[name] {
			continue
		}
		if err := bpf.ZeroArray(m); err != nil {
			return err
		}
	}
	var lost []tableFlow
	err := d.eachFlow(func(f tableFlow) bool {
		r := flowRequest{Family: 4}
		switch key := f.key.(type) {
		case *bpf.Key4:
			r.Key4 = *key
		case *bpf.Key6:
			r.Family, r.Key6 = 6, *key
		}
		if err := d.table.run("weft_flow_adopt", &r); err != nil || r.Adopted == 0 {
			lost = append(lost, f)
		}
		return true
	})
	for _, f := range lost {
		err = errors.Join(err, bpf.DeleteKey(f.table, f.key))
	}
	return err
}
