package encryptcheck

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
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

// tapObject is bpf/encryptcheck/tap.bpf.c, compiled.
//
//go:embed obj/tap.o
var tapObject []byte

// tapRecord is the head of struct tap_record in bpf/encryptcheck/tap.bpf.c; the frame's bytes
// follow.
type tapRecord struct{ Length, Ifindex, Outgoing uint32 }

// ErrNoTap says that this kernel does not let programs be watched: it has no BPF trampolines, or
// forbids them.
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

func (t *Tap) open(programs []XDPProgram) error {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(tapObject))
	if err != nil {
		return fmt.Errorf("read the tap's programs: %w", err)
	}
	if t.frames, err = ebpf.NewMap(spec.Maps["weft_tap_frames"]); err != nil {
		return fmt.Errorf("make ring buffer: %w", err)
	}
	if t.lost, err = ebpf.NewMap(spec.Maps["weft_tap_lost"]); err != nil {
		return fmt.Errorf("make counter: %w", err)
	}
	if t.reader, err = ringbuf.NewReader(t.frames); err != nil {
		return fmt.Errorf("read ring buffer: %w", err)
	}
	for _, p := range programs {
		if err := t.attach(spec.Copy(), p); err != nil {
			return fmt.Errorf("program %d: %w", p.ID, err)
		}
	}
	return nil
}

// attach loads the tap's programs for one target: which function a tracing program is for is part
// of its load.
func (t *Tap) attach(spec *ebpf.CollectionSpec, p XDPProgram) error {
	target, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
	if err != nil {
		return err
	}
	defer target.Close()
	function, err := entryFunction(target)
	if err != nil {
		return err
	}
	if !p.Uplink {
		delete(spec.Programs, "weft_tap_received")
	}
	for _, program := range spec.Programs {
		program.AttachTarget, program.AttachTo = target, function
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{"weft_tap_frames": t.frames, "weft_tap_lost": t.lost},
	})
	if err != nil {
		return fmt.Errorf("load the tap for %s: %w", function, err)
	}
	defer collection.Close()
	for name, program := range collection.Programs {
		attached, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return fmt.Errorf("attach %s to %s: %w", name, function, err)
		}
		t.links = append(t.links, attached)
	}
	return nil
}

// entryFunction is the full name of a program's function; the program's own is cut to 15
// characters.
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
	var r tapRecord
	n, err := binary.Decode(raw, binary.NativeEndian, &r)
	if err != nil {
		return
	}
	if name, uplink := t.uplinks[r.Ifindex]; uplink {
		data, length := raw[n:], int(r.Length)
		handle(Frame{name, r.Outgoing == 1, length, data[:min(length, len(data))]})
	}
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
