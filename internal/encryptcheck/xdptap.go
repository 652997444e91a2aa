package encryptcheck

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// XDPProgram is a program in native XDP. What it takes from an interface, or sends out of one by
// redirecting, no packet socket ever sees.
type XDPProgram struct {
	ID uint32
	// Uplink says that it runs on an uplink: what it receives has been on the wire.
	Uplink bool
}

const (
	tapBuffer = 16 << 20
	// tapData is how much of a frame is kept, tapRecord the size of a record: length,
	// interface and direction in 32 bits each, 4 bytes of nothing, data.
	tapData   = 2048
	tapHeader = 16
	tapRecord = tapHeader + tapData
	// XDP's verdicts.
	xdpTX       = 3
	xdpRedirect = 4
)

// ErrNoTap says that this kernel does not let programs be watched: it has no BPF trampolines, or forbids them.
var ErrNoTap = errors.New("this kernel does not let XDP programs be watched")

// Tap sees the frames of XDP programs: small tracing programs, attached to them while it is
// open, copy each frame that comes from an uplink or goes to one.
type Tap struct {
	uplinks map[uint32]string
	frames  *ebpf.Map
	lost    *ebpf.Map
	reader  *ringbuf.Reader
	links   []link.Link
}

// TapXDP begins to watch programs. uplinks names the wire's interfaces by index.
func TapXDP(programs []XDPProgram, uplinks map[uint32]string) (*Tap, error) {
	t := &Tap{uplinks: uplinks}
	if err := t.open(programs); err != nil {
		t.Close()
		if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
			return nil, ErrNoTap // the loader's own words guess at other causes
		}
		return nil, fmt.Errorf("watch XDP programs: %w", err)
	}
	return t, nil
}

func (t *Tap) open(programs []XDPProgram) (err error) {
	if t.frames, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: tapBuffer}); err != nil {
		return fmt.Errorf("make ring buffer: %w", err)
	}
	if t.lost, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}); err != nil {
		return fmt.Errorf("make counter: %w", err)
	}
	if t.reader, err = ringbuf.NewReader(t.frames); err != nil {
		return fmt.Errorf("read ring buffer: %w", err)
	}
	at, err := kernelOffsets()
	if err != nil {
		return err
	}
	for _, p := range programs {
		if err := t.attach(p, at); err != nil {
			return fmt.Errorf("program %d: %w", p.ID, err)
		}
	}
	return nil
}

func (t *Tap) attach(p XDPProgram, at *offsets) error {
	target, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
	if err != nil {
		return err
	}
	defer target.Close()
	function, err := entryFunction(target)
	if err != nil {
		return err
	}
	if p.Uplink {
		if err := t.trace(target, function, ebpf.AttachTraceFEntry, t.received(at)); err != nil {
			return err
		}
	}
	return t.trace(target, function, ebpf.AttachTraceFExit, t.sent(at))
}

func (t *Tap) trace(target *ebpf.Program, function string, kind ebpf.AttachType, code asm.Instructions) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "weft_tap", Type: ebpf.Tracing, AttachType: kind, AttachTo: function, AttachTarget: target,
		Instructions: code, License: "GPL",
	})
	if err != nil {
		return fmt.Errorf("load %s of %s: %w", kind, function, err)
	}
	defer program.Close()
	attached, err := link.AttachTracing(link.TracingOptions{Program: program, AttachType: kind})
	if err != nil {
		return fmt.Errorf("attach %s to %s: %w", kind, function, err)
	}
	t.links = append(t.links, attached)
	return nil
}

// entryFunction is the full name of a program's function; the program's own is cut to 15 characters.
func entryFunction(p *ebpf.Program) (string, error) {
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	functions, err := info.FuncInfos()
	if err != nil {
		return "", fmt.Errorf("read the names of its functions: %w", err)
	}
	for _, f := range functions {
		if f.Offset == 0 {
			return f.Func.Name, nil
		}
	}
	return "", errors.New("it has no type information")
}

// offsets are places of fields in the kernel's structures.
type offsets struct {
	data, dataEnd, rxq, dev, ifindex int16
	context, target                  int16
}

// kernelOffsets reads them from the running kernel's type information.
func kernelOffsets() (*offsets, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	at := &offsets{}
	redirect := int16(0)
	for _, f := range []struct {
		to           *int16
		kind, member string
	}{
		{&at.data, "xdp_buff", "data"}, {&at.dataEnd, "xdp_buff", "data_end"}, {&at.rxq, "xdp_buff", "rxq"},
		{&at.dev, "xdp_rxq_info", "dev"}, {&at.ifindex, "net_device", "ifindex"},
		{&at.context, "task_struct", "bpf_net_context"}, {&redirect, "bpf_net_context", "ri"}, {&at.target, "bpf_redirect_info", "tgt_index"},
	} {
		if *f.to, err = memberOffset(spec, f.kind, f.member); err != nil {
			return nil, err
		}
	}
	at.target += redirect
	return at, nil
}

func memberOffset(spec *btf.Spec, kind, member string) (int16, error) {
	var structure *btf.Struct
	if err := spec.TypeByName(kind, &structure); err != nil {
		return 0, fmt.Errorf("this kernel has no struct %s: %w", kind, err)
	}
	offset, ok := findMember(structure.Members, member)
	if !ok {
		return 0, fmt.Errorf("this kernel's struct %s has no %s", kind, member)
	}
	return int16(offset.Bytes()), nil
}

// findMember looks into members without a name, too.
func findMember(members []btf.Member, name string) (btf.Bits, bool) {
	for _, m := range members {
		if m.Name == name {
			return m.Offset, true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if offset, ok := findMember(inner, name); ok {
			return m.Offset + offset, true
		}
	}
	return 0, false
}

// received copies every frame before the program runs. R7 is the interface, R8 the data, R9 its length.
func (t *Tap) received(at *offsets) asm.Instructions {
	return append(append(loadFrame(at), rxInterface(at)...), t.copyFrame(0)...)
}

// sent copies the frames that the program sends: back where they came from, or by redirecting.
func (t *Tap) sent(at *offsets) asm.Instructions {
	code := append(asm.Instructions{asm.LoadMem(asm.R7, asm.R1, 8, asm.DWord)}, loadFrame(at)...)
	code = append(code,
		asm.JEq.Imm(asm.R7, xdpRedirect, "redirect"),
		asm.JNE.Imm(asm.R7, xdpTX, "out"),
	)
	code = append(code, rxInterface(at)...)
	code = append(code,
		asm.Ja.Label("copy"),
		asm.FnGetCurrentTaskBtf.Call().WithSymbol("redirect"),
		asm.LoadMem(asm.R1, asm.R0, at.context, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "out"),
		asm.LoadMem(asm.R7, asm.R1, at.target, asm.DWord),
	)
	return append(code, t.copyFrame(1)...)
}

// loadFrame reads the frame's place from the XDP program's context.
func loadFrame(at *offsets) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord),
		asm.LoadMem(asm.R8, asm.R6, at.data, asm.DWord),
		asm.LoadMem(asm.R9, asm.R6, at.dataEnd, asm.DWord),
		asm.Sub.Reg(asm.R9, asm.R8),
	}
}

func rxInterface(at *offsets) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, at.rxq, asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, at.dev, asm.DWord),
		asm.LoadMem(asm.R7, asm.R1, at.ifindex, asm.Word),
	}
}

// copyFrame hands a frame to the reader and ends.
func (t *Tap) copyFrame(outgoing int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, t.frames.FD()).WithSymbol("copy"),
		asm.Mov.Imm(asm.R2, tapRecord),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "full"),
		asm.Mov.Reg(asm.R6, asm.R0),
		asm.StoreMem(asm.R6, 0, asm.R9, asm.Word),
		asm.StoreMem(asm.R6, 4, asm.R7, asm.Word),
		asm.StoreImm(asm.R6, 8, int64(outgoing), asm.Word),
		asm.StoreImm(asm.R6, 12, 0, asm.Word),
		asm.JLE.Imm(asm.R9, tapData, "fits"),
		asm.Mov.Imm(asm.R9, tapData),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("fits"),
		asm.Add.Imm(asm.R1, tapHeader),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.FnProbeReadKernel.Call(),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRingbufSubmit.Call(),
		asm.Ja.Label("out"),
		asm.StoreImm(asm.R10, -4, 0, asm.Word).WithSymbol("full"),
		asm.LoadMapPtr(asm.R1, t.lost.FD()),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}
}

// Run hands every frame to handle until ctx ends and what was kept until then has been read, at
// most for drainLimit.
func (t *Tap) Run(ctx context.Context, handle func(Frame)) error {
	var record ringbuf.Record
	var ended time.Time
	for {
		if ctx.Err() != nil && ended.IsZero() {
			ended = time.Now()
		}
		if !ended.IsZero() && time.Since(ended) > drainLimit {
			return nil
		}
		t.reader.SetDeadline(time.Now().Add(pollEvery))
		err := t.reader.ReadInto(&record)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !ended.IsZero() {
				return nil
			}
		case err != nil:
			return fmt.Errorf("watch XDP programs: %w", err)
		default:
			t.frame(record.RawSample, handle)
		}
	}
}

func (t *Tap) frame(raw []byte, handle func(Frame)) {
	if len(raw) < tapHeader {
		return
	}
	name, uplink := t.uplinks[binary.NativeEndian.Uint32(raw[4:])]
	if !uplink {
		return
	}
	length := int(binary.NativeEndian.Uint32(raw))
	data := raw[tapHeader:]
	handle(Frame{name, raw[8] == 1, length, data[:min(length, len(data))]})
}

// Lost is how many frames did not fit into the buffer.
func (t *Tap) Lost() uint64 {
	var lost uint64
	_ = t.lost.Lookup(uint32(0), &lost)
	return lost
}

// Close takes the tracing programs away. It must not be called while Run runs.
func (t *Tap) Close() {
	for _, l := range t.links {
		l.Close()
	}
	if t.reader != nil {
		t.reader.Close()
	}
	for _, m := range []*ebpf.Map{t.frames, t.lost} {
		if m != nil {
			m.Close()
		}
	}
}
