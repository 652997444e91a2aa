package esp

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// writer changes entries: what user space may not do itself, since the kernel owns the keys, the
// programs of bpf/sa.bpf.c do for it.
type writer struct {
	status            EngineStatus
	engine            uint32
	collection        *ebpf.Collection
	allocOut, allocIn *keyAllocator
	request           *saRequest // in locked memory of its own, since keys pass through it
	fence             *ebpf.Map
	// aes is the cipher's name for engine bpf.
	aes string
}

// saRequest is struct sa_request of bpf/sa.bpf.c, its first fields the kernel's struct
// bpf_crypto_params.
type saRequest struct {
	Type     [14]byte
	Reserved [2]byte
	Algo     [128]byte
	Key      [256]byte
	KeyLen   uint32
	AuthSize uint32
	ID       uint32
	Out      uint32
	Salt     [4]byte
	Engine   uint32
	State    uint32
	Result   int32

	Fingerprint uint64
	ExpiresNs   uint64
}

func (w *writer) open(m *bpf.Maps) error {
	memory, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("allocate memory for keys: %w", err)
	}
	// Best effort: what cannot be locked is zeroed all the same, a moment after use.
	_ = unix.Mlock(memory)
	_ = unix.Madvise(memory, unix.MADV_DONTDUMP)
	w.request = (*saRequest)(unsafe.Pointer(&memory[0]))
	spec, err := bpf.LoadSpec("sa_xdp")
	if err != nil {
		return err
	}
	if w.collection, err = ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{MapReplacements: m.SharedWith(spec)}); err != nil {
		return fmt.Errorf("load sa: %w (Linux 6.12 or later is needed)", err)
	}
	if w.allocOut, err = newKeyAllocator(m.SAOut); err != nil {
		return err
	}
	if w.allocIn, err = newKeyAllocator(m.SAIn); err != nil {
		return err
	}
	w.fence, err = newFence()
	return err
}

func (w *writer) close() {
	for _, closer := range []interface{ Close() error }{w.allocOut, w.allocIn, w.fence} {
		_ = closer.Close()
	}
	if w.collection != nil {
		w.collection.Close()
	}
	if w.request != nil {
		*w.request = saRequest{}
		_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(w.request)), unix.Getpagesize()))
	}
	*w = writer{}
}

// fill gives an entry its cipher and salt.
func (w *writer) fill(id uint32, sa *SA, engine uint32) error {
	w.request.cipher(engine)
	if engine == bpf.EngineBpf && w.aes != "" {
		w.request.named(w.aes)
	}
	w.request.ID, w.request.Out = id, uint32(bpf.Flag(sa.Out))
	copy(w.request.Key[:], sa.Key[:])
	w.request.Salt = sa.Salt
	return w.run("weft_sa_fill")
}

func (w *writer) setState(id uint32, out bool, state uint32) error {
	*w.request = saRequest{ID: id, Out: uint32(bpf.Flag(out)), State: state}
	if err := w.run("weft_sa_state"); err != nil {
		return fmt.Errorf("change the state of an SA: %w", err)
	}
	return nil
}

// markSealer says whether the sealer holds the key of an SA that is in use, if it has this
// fingerprint.
func (w *writer) markSealer(id uint32, out bool, fingerprint uint64, holds bool) error {
	*w.request = saRequest{ID: id, Out: uint32(bpf.Flag(out)), Fingerprint: fingerprint,
		State: uint32(bpf.Flag(holds))}
	return w.run("weft_sa_sealer")
}

// extend moves the end of an SA that is in use, if it has these keys; never back.
func (w *writer) extend(id uint32, out bool, fingerprint, expires uint64) error {
	*w.request = saRequest{ID: id, Out: uint32(bpf.Flag(out)), Fingerprint: fingerprint,
		ExpiresNs: expires}
	return w.run("weft_sa_extend")
}

func (w *writer) wipe(id uint32, out bool) error {
	*w.request = saRequest{ID: id, Out: uint32(bpf.Flag(out))}
	if err := w.run("weft_sa_wipe"); err != nil {
		return fmt.Errorf("wipe an SA: %w", err)
	}
	return nil
}

// run runs a SEC("syscall") program on the request itself: the kernel writes its copy back, which
// the program has wiped. Not through the library, which would leave another copy.
func (w *writer) run(program string) error {
	p := w.collection.Programs[program]
	defer clear(w.request.Key[:])
	attr := struct {
		ProgFD, Retval, DataSizeIn, DataSizeOut uint32
		DataIn, DataOut                         uint64
		Repeat, Duration, CtxSizeIn, CtxSizeOut uint32
		CtxIn, CtxOut                           unsafe.Pointer
		Flags, CPU, BatchSize, _                uint32
	}{ProgFD: uint32(p.FD()), CtxIn: unsafe.Pointer(w.request),
		CtxSizeIn: uint32(unsafe.Sizeof(*w.request))}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(p)
	if errno != 0 {
		return fmt.Errorf("run %s: %w", program, errno)
	}
	if w.request.Result != 0 {
		return unix.Errno(-w.request.Result)
	}
	return nil
}

// powersFrame is struct powers_frame of bpf/sa.bpf.c.
type powersFrame struct {
	Ethernet [16]byte
	ID       uint32
	Out      uint32
	Result   int32
	Pad      uint32
	Block    [16]byte
}

// powers computes what GHASH needs of an entry's key.
func (w *writer) powers(id uint32, out bool) error {
	frame := powersFrame{ID: id, Out: uint32(bpf.Flag(out)), Result: -int32(unix.EIO)}
	data, err := binary.Append(nil, binary.NativeEndian, &frame)
	if err != nil {
		return err
	}
	options := &ebpf.RunOptions{Data: data, DataOut: make([]byte, len(data)), Repeat: 1}
	if _, err := w.collection.Programs["weft_sa_powers"].Run(options); err != nil {
		return fmt.Errorf("run weft_sa_powers: %w", err)
	}
	if _, err := binary.Decode(options.DataOut, binary.NativeEndian, &frame); err != nil {
		return err
	}
	if frame.Result != 0 {
		return unix.Errno(-frame.Result)
	}
	return nil
}

// newFence makes a map whose update returns only after every program that ran at the time has
// ended: the kernel promises that of maps of maps (maybe_wait_bpf_programs).
func newFence() (*ebpf.Map, error) {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	fence, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "weft_fence", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1,
		InnerMap: inner,
	})
	if err != nil {
		return nil, fmt.Errorf("make the map that packets are waited for with: %w", err)
	}
	return fence, nil
}

// waitForPackets returns when no packet is being handled any more that was when it was called.
func (w *writer) waitForPackets() error {
	inner, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4,
		MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	defer inner.Close()
	if err := w.fence.Put(uint32(0), inner); err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	return nil
}
