package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// EngineStatus says what does the AES-GCM of SAs that are installed from now on, and why. Each SA keeps the one it
// was made for; both ends of one may differ.
type EngineStatus struct {
	Asked  string `json:"asked"`
	Active string `json:"active"`
	Why    string `json:"why"`
	// AES is what engine bpf runs on; zero for another engine.
	AES AESStatus `json:"aes,omitzero"`
}

var errJumbo = errors.New("in mode xdp the module cannot take frames larger than a page, which the uplinks' MTU allows")

// associations is what user space needs to change SAs. Guarded by Datapath.mu.
type associations struct {
	status            EngineStatus
	engine            uint32
	collection        *ebpf.Collection
	allocOut, allocIn *keyAllocator
	request           *saRequest // in locked memory of its own, since keys pass through it
	fence             *ebpf.Map
	// aes is the cipher's name for engine bpf.
	aes string
}

// saRequest is struct sa_request of bpf/sa.bpf.c, its first fields the kernel's struct bpf_crypto_params.
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

// openEngine loads the programs that change SAs, chooses the engine, and retires what a crash left half-removed.
func (d *Datapath) openEngine() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.sas.open(d.maps); err != nil {
		return fmt.Errorf("prepare encryption: %w", err)
	}
	// The module works where the packet lies, and that must be linear. An skb can be made one.
	pieces := d.mode.Active == ModeXDP && d.needsFrags()
	if err := d.sas.choose(d.opts.Encrypt, pieces); err != nil {
		return err
	}
	for _, out := range []bool{true, false} {
		var dead []uint32
		err := d.eachSA(out, func(id uint32, sa *saEntry) {
			if sa.state != bpf.SaLive {
				dead = append(dead, id)
			}
		})
		if err := errors.Join(err, d.retire(out, dead)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Datapath) closeEngine() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sas.close()
}

// EngineStatus says which engine runs and why.
func (d *Datapath) EngineStatus() EngineStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sas.status
}

func (a *associations) open(m *bpf.Maps) error {
	memory, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("allocate memory for keys: %w", err)
	}
	// Best effort: what cannot be locked is zeroed all the same, a moment after use.
	_ = unix.Mlock(memory)
	_ = unix.Madvise(memory, unix.MADV_DONTDUMP)
	a.request = (*saRequest)(unsafe.Pointer(&memory[0]))
	spec, err := bpf.LoadSpec("sa_xdp")
	if err != nil {
		return err
	}
	if a.collection, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: m.SharedWith(spec)}); err != nil {
		return fmt.Errorf("load sa: %w (Linux 6.12 or later is needed)", err)
	}
	if a.allocOut, err = newKeyAllocator(m.SAOut); err != nil {
		return err
	}
	if a.allocIn, err = newKeyAllocator(m.SAIn); err != nil {
		return err
	}
	a.fence, err = newFence()
	return err
}

func (a *associations) close() {
	for _, closer := range []interface{ Close() error }{a.allocOut, a.allocIn, a.fence} {
		_ = closer.Close()
	}
	if a.collection != nil {
		a.collection.Close()
	}
	if a.request != nil {
		*a.request = saRequest{}
		_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(a.request)), unix.Getpagesize()))
	}
	*a = associations{}
}

// choose picks the engine. The kernel says -ENOENT of a cipher that nobody has registered.
func (a *associations) choose(opts *EncryptOptions, pieces bool) error {
	asked := opts.Engine
	if asked == "" {
		asked = "auto"
	}
	noBPF, kmod := a.probe(bpf.EngineBpf), a.probe(bpf.EngineKmod)
	if pieces && kmod == nil {
		kmod = errJumbo
	}
	a.status = EngineStatus{Asked: asked}
	switch {
	case asked != "auto" && asked != "bpf" && asked != "kmod":
		return fmt.Errorf("encryption.engine: %q: must be auto, bpf or kmod", asked)
	case asked == "kmod" && errors.Is(kmod, errJumbo):
		return fmt.Errorf("encryption.engine: kmod: %w: set engine auto or bpf, mode tc, or a smaller MTU on the uplinks", kmod)
	case asked == "kmod" && kmod != nil:
		return fmt.Errorf("encryption.engine: kmod: %w: load the module weft_crypto, or set auto", kmod)
	case asked != "bpf" && kmod == nil:
		a.engine, a.status.Why = bpf.EngineKmod, "the module weft_crypto is loaded"
	case noBPF != nil:
		return fmt.Errorf("encryption.engine: %s: the kernel gives BPF no AES: %w: a kernel with CONFIG_CRYPTO_ECB and CONFIG_CRYPTO_AES is needed, or the module weft_crypto", asked, noBPF)
	default:
		a.engine, a.status.Why = bpf.EngineBpf, "as configured"
		if asked == "auto" {
			a.status.Why = fmt.Sprintf("the module weft_crypto is not loaded (%v)", kmod)
			if errors.Is(kmod, errJumbo) {
				a.status.Why = kmod.Error()
			}
		}
	}
	a.status.Active = bpf.EngineNames[a.engine]
	if a.engine != bpf.EngineBpf {
		return nil
	}
	aes, err := a.readAES(opts.AllowTableAES)
	if err != nil {
		return fmt.Errorf("encryption.engine: %s: %w", asked, err)
	}
	a.status.AES = aes
	// By its name, so that what was judged is what runs. One that is unknown to us has no name to ask by.
	if aes.ConstantTime {
		a.aes = "ecb(" + aes.Driver + ")"
	}
	return nil
}

// cipher names the kernel's cipher for an engine, with a key that is not one.
func (r *saRequest) cipher(engine uint32) {
	*r = saRequest{KeyLen: 32, Engine: engine}
	if engine == bpf.EngineKmod {
		copy(r.Type[:], "aead")
		copy(r.Algo[:], "gcm(aes)/12") // 12 bytes of associated data
		r.AuthSize = 16
		return
	}
	copy(r.Type[:], "skcipher")
	copy(r.Algo[:], "ecb(aes)")
}

// named asks for one driver of the kernel's cipher.
func (r *saRequest) named(driver string) {
	r.Algo = [128]byte{}
	copy(r.Algo[:], driver)
}

func (a *associations) probe(engine uint32) error {
	a.request.cipher(engine)
	return a.run("weft_sa_probe")
}

// fill gives an entry its cipher and salt.
func (a *associations) fill(id uint32, sa *SA, engine uint32) error {
	a.request.cipher(engine)
	if engine == bpf.EngineBpf && a.aes != "" {
		a.request.named(a.aes)
	}
	a.request.ID, a.request.Out = id, uint32(bpf.Flag(sa.Out))
	copy(a.request.Key[:], sa.Key[:])
	a.request.Salt = sa.Salt
	return a.run("weft_sa_fill")
}

func (a *associations) setState(id uint32, out bool, state uint32) error {
	*a.request = saRequest{ID: id, Out: uint32(bpf.Flag(out)), State: state}
	if err := a.run("weft_sa_state"); err != nil {
		return fmt.Errorf("change the state of an SA: %w", err)
	}
	return nil
}

// extend moves the end of an SA that is in use, if it has these keys; never back.
func (a *associations) extend(id uint32, out bool, fingerprint, expires uint64) error {
	*a.request = saRequest{ID: id, Out: uint32(bpf.Flag(out)), Fingerprint: fingerprint, ExpiresNs: expires}
	return a.run("weft_sa_extend")
}

func (a *associations) wipe(id uint32, out bool) error {
	*a.request = saRequest{ID: id, Out: uint32(bpf.Flag(out))}
	if err := a.run("weft_sa_wipe"); err != nil {
		return fmt.Errorf("wipe an SA: %w", err)
	}
	return nil
}

// run runs a SEC("syscall") program on the request itself: the kernel writes its copy back, which the program has
// wiped. Not through the library, which would leave another copy.
func (a *associations) run(program string) error {
	p := a.collection.Programs[program]
	defer clear(a.request.Key[:])
	attr := struct {
		ProgFD, Retval, DataSizeIn, DataSizeOut uint32
		DataIn, DataOut                         uint64
		Repeat, Duration, CtxSizeIn, CtxSizeOut uint32
		CtxIn, CtxOut                           unsafe.Pointer
		Flags, CPU, BatchSize, _                uint32
	}{ProgFD: uint32(p.FD()), CtxIn: unsafe.Pointer(a.request), CtxSizeIn: uint32(unsafe.Sizeof(*a.request))}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(p)
	if errno != 0 {
		return fmt.Errorf("run %s: %w", program, errno)
	}
	if a.request.Result != 0 {
		return unix.Errno(-a.request.Result)
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
func (a *associations) powers(id uint32, out bool) error {
	frame := powersFrame{ID: id, Out: uint32(bpf.Flag(out)), Result: -int32(unix.EIO)}
	data, err := binary.Append(nil, binary.NativeEndian, &frame)
	if err != nil {
		return err
	}
	options := &ebpf.RunOptions{Data: data, DataOut: make([]byte, len(data)), Repeat: 1}
	if _, err := a.collection.Programs["weft_sa_powers"].Run(options); err != nil {
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

// newFence makes a map whose update returns only after every program that ran at the time has ended: the kernel
// promises that of maps of maps (maybe_wait_bpf_programs).
func newFence() (*ebpf.Map, error) {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	fence, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "weft_fence", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner,
	})
	if err != nil {
		return nil, fmt.Errorf("make the map that packets are waited for with: %w", err)
	}
	return fence, nil
}

// waitForPackets returns when no packet is being handled any more that was when it was called.
func (a *associations) waitForPackets(h *expedite) error {
	defer h.begin()()
	inner, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	defer inner.Close()
	if err := a.fence.Put(uint32(0), inner); err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	return nil
}
