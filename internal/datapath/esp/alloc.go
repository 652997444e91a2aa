package esp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// keyAllocator is a program that gives an entry of one map its key object. It is the one program
// that is not loaded by cilium/ebpf: the kernel lets a new object be stored in a map only if
// program and map name its type by the same BTF, and the library gives each its own. So it is
// written here, and loaded with the map's.
type keyAllocator struct{ program *ebpf.Program }

// allocRequest is the program's context.
type allocRequest struct {
	ID     uint32
	Result int32
}

// newKeyAllocator loads the program for a map of SAs, whose values have their key object at the
// given offset.
func newKeyAllocator(m *ebpf.Map) (*keyAllocator, error) {
	handle, err := m.Handle()
	if err != nil {
		return nil, fmt.Errorf("read the BTF of map %s: %w", m, err)
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		return nil, fmt.Errorf("parse the BTF of map %s: %w", m, err)
	}
	var key *btf.Struct
	if err := types.TypeByName("weft_key", &key); err != nil {
		return nil, fmt.Errorf("find struct weft_key in the BTF of map %s: %w", m, err)
	}
	keyID, err := types.TypeID(key)
	if err != nil {
		return nil, fmt.Errorf("find struct weft_key in the BTF of map %s: %w", m, err)
	}
	create, drop, err := objectFunctions()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := allocProgram(m, keyID, create, drop).Marshal(&text, nativeOrder()); err != nil {
		return nil, fmt.Errorf("assemble the key allocator: %w", err)
	}
	fd, err := loadWithBTF("weft_sa_alloc", text.Bytes(), handle)
	if err != nil {
		return nil, fmt.Errorf("load the key allocator: %w", err)
	}
	program, err := ebpf.NewProgramFromFD(fd)
	if err != nil {
		return nil, fmt.Errorf("open the key allocator: %w", err)
	}
	return &keyAllocator{program}, nil
}

// objectFunctions finds the kernel's functions that make and free an object. Newer kernels may drop
// the suffix.
func objectFunctions() (create, drop btf.TypeID, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, 0, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	find := func(names ...string) (btf.TypeID, error) {
		for _, name := range names {
			var f *btf.Func
			if kernel.TypeByName(name, &f) == nil {
				return kernel.TypeID(f)
			}
		}
		return 0, fmt.Errorf("the kernel has no %s: Linux 6.12 or later is needed", names[0])
	}
	create, err = find("bpf_obj_new_impl", "bpf_obj_new")
	if err != nil {
		return 0, 0, err
	}
	drop, err = find("bpf_obj_drop_impl", "bpf_obj_drop")
	return create, drop, err
}

func kernelCall(id btf.TypeID) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call),
		Src: asm.PseudoKfuncCall, Constant: int64(id)}
}

// allocProgram is, in C: sa = lookup(map, ctx->id); key = new(weft_key); key = kptr_xchg(&sa->key,
// key); if (key) drop(key). A new object is zeroed.
func allocProgram(m *ebpf.Map, keyType, create, drop btf.TypeID) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.R6, 4, -int64(unix.ENOENT), asm.Word),
		asm.LoadMem(asm.R1, asm.R6, 0, asm.Word),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.StoreImm(asm.R6, 4, -int64(unix.ENOMEM), asm.Word),
		asm.LoadImm(asm.R1, int64(keyType), asm.DWord),
		asm.Mov.Imm(asm.R2, 0),
		kernelCall(create),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Add.Imm(asm.R1, keyOffset),
		asm.FnKptrXchg.Call(),
		asm.StoreImm(asm.R6, 4, 0, asm.Word),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.Mov.Imm(asm.R2, 0),
		kernelCall(drop),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}
}

// keyOffset is where struct weft_sa_out and weft_sa_in have their key.
const keyOffset = 8

// progLoadAttr is the kernel's union bpf_attr for BPF_PROG_LOAD.
type progLoadAttr struct {
	ProgType, InsnCnt           uint32
	Insns, License              unsafe.Pointer
	LogLevel, LogSize           uint32
	LogBuf                      unsafe.Pointer
	KernVersion, ProgFlags      uint32
	ProgName                    [16]byte
	ProgIfindex, ExpectedAttach uint32
	ProgBTFFD, FuncInfoRecSize  uint32
	FuncInfo                    unsafe.Pointer
	FuncInfoCnt, LineInfoRec    uint32
	LineInfo                    unsafe.Pointer
	LineInfoCnt, AttachBTFID    uint32
}

// loadWithBTF loads a SEC("syscall") program with somebody else's BTF. The kernel looks at a
// program's BTF only if functions or lines are described by it; one nameless line is the least
// there is.
func loadWithBTF(name string, text []byte, handle *btf.Handle) (int, error) {
	license := []byte("GPL\x00")
	line := [4]uint32{}
	log := make([]byte, 1<<16)
	attr := progLoadAttr{
		ProgType: uint32(ebpf.Syscall), InsnCnt: uint32(len(text) / asm.InstructionSize),
		Insns:   unsafe.Pointer(&text[0]),
		License: unsafe.Pointer(&license[0]), ProgFlags: unix.BPF_F_SLEEPABLE,
		ProgBTFFD:   uint32(handle.FD()),
		LineInfoRec: uint32(unsafe.Sizeof(line)), LineInfo: unsafe.Pointer(&line), LineInfoCnt: 1,
		LogLevel: 1, LogSize: uint32(len(log)), LogBuf: unsafe.Pointer(&log[0]),
	}
	copy(attr.ProgName[:], name)
	fd, errno := progLoad(&attr)
	runtime.KeepAlive(handle)
	if errno != 0 {
		text, _, _ := bytes.Cut(log, []byte{0})
		return 0, fmt.Errorf("%w: %s", errno, bytes.TrimSpace(text))
	}
	return int(fd), nil
}

// progLoad asks again where the verifier was stopped by a signal to its thread, such as those of
// Go's scheduler: it then answers EAGAIN (bpf_check's do_check, kernel/bpf/verifier.c). A kernel
// that answers nothing else is not asked for ever.
func progLoad(attr *progLoadAttr) (fd uintptr, errno unix.Errno) {
	for range loadTries {
		fd, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(attr)),
			unsafe.Sizeof(*attr))
		if errno != unix.EAGAIN {
			break
		}
	}
	return fd, errno
}

// loadTries is how often progLoad asks.
const loadTries = 30

// alloc gives an entry an empty key object.
func (a *keyAllocator) alloc(id uint32) error {
	request := allocRequest{ID: id}
	if _, err := a.program.Run(&ebpf.RunOptions{Context: &request}); err != nil {
		return fmt.Errorf("run the key allocator: %w", err)
	}
	if request.Result != 0 {
		return fmt.Errorf("allocate a key: %w", unix.Errno(-request.Result))
	}
	return nil
}

func (a *keyAllocator) Close() error {
	if a == nil || a.program == nil {
		return nil
	}
	return a.program.Close()
}

// nativeOrder is this machine's byte order under the name that the assembler knows.
func nativeOrder() binary.ByteOrder {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return binary.LittleEndian
	}
	return binary.BigEndian
}
