package kernels

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/test/espref"
)

// packetCost is how many instructions sealing or opening 1400 bytes may take in the module.
const packetCost = 6000

func needCounting(t *testing.T) {
	t.Helper()
	if os.Getenv("WEFT_ICOUNT") == "" {
		t.Skip("needs a VM that counts instructions: `make test-kernels` has one for each kernel")
	}
}

// TestModuleCost counts what the module takes for a packet of 1400 bytes. Only where a nanosecond
// is an instruction does it say anything: in `test/kernels/vm -i`.
func TestModuleCost(t *testing.T) {
	needCounting(t)
	loadModule(t)
	c := newCaller(t)
	if errno := c.create(t, "aead", "gcm(aes)/12", make([]byte, 32), 16); errno != 0 {
		t.Fatal(errno)
	}
	cost := func(seal, open bool) int64 {
		do := message(make([]byte, 12), make([]byte, 12), make([]byte, 1400))
		do.seal, do.open = seal, open
		c.tell(t, do)
		least := int64(1 << 62)
		for range 5 {
			_, took, err := c.Programs["crypt"].Benchmark(do.frame, 500, nil)
			must(t, err)
			if errno := c.answer(t); errno != 0 {
				t.Fatal(errno)
			}
			least = min(least, took.Nanoseconds())
		}
		return least
	}
	empty, seal, both := cost(false, false), cost(true, false), cost(true, true)
	t.Logf("instructions for 1400 bytes: seal %d, open %d, and %d of the program around them",
		seal-empty, both-seal, empty)
	if seal-empty > packetCost || both-seal > packetCost {
		t.Errorf("want at most %d each", packetCost)
	}
}

// TestHookCost counts what a node takes for a packet of 1400 bytes, from the pod's interface to the
// sealed frame for the wire and back, all of the datapath included.
func TestHookCost(t *testing.T) {
	needCounting(t)
	for _, engine := range []string{"kmod", "bpf"} {
		t.Run(engine, func(t *testing.T) {
			w, x := newWeft(t, datapath.ModeXDP, engine)
			w.outer(t, false)
			w.rekey(t, x, 0, 0)
			packet := udpPacket(far4, near4, 1400)
			seal := w.hookCost(t, "from_pod", "wtpod",
				func(int) []byte { return frame(gatewayMAC, podMAC, packet) })
			sa := testKey(0x80)
			sa.SPI = spi(0, nearIdentity)
			outer := espref.Outer{From: netip.AddrPortFrom(xfrm4, 0xc123),
				To: netip.AddrPortFrom(peer4, espref.Port)}
			back := udpPacket(near4, far4, 1400)
			open := w.hookCost(t, "from_wire", "wire1", func(i int) []byte {
				esp, err := sa.Seal(uint64(i+1), back)
				must(t, err)
				return frame(wire1MAC, wire0MAC, outer.Wrap(esp))
			})
			t.Logf("instructions for a packet of 1400 bytes, engine %s: from_pod with sealing %d, from_wire with opening %d", engine, seal, open)
		})
	}
}

// hookCost is the least that one run of an attached program takes. Each gets a frame of its own,
// since it changes it.
func (w *weftNode) hookCost(t *testing.T, hook, device string, next func(int) []byte) int64 {
	t.Helper()
	least := int64(1 << 62)
	must(t, netns.Do(w.ns, func() error {
		program, index, err := w.attached(hook, device)
		if err != nil {
			return err
		}
		defer program.Close()
		for i := range 200 {
			frame := next(i)
			took, err := timeRun(program, frame, index)
			if err != nil {
				return err
			}
			least = min(least, took)
		}
		return nil
	}))
	return least
}

func (w *weftNode) attached(hook, device string) (*ebpf.Program, uint32, error) {
	links, err := w.Links()
	if err != nil {
		return nil, 0, err
	}
	i := slices.IndexFunc(links,
		func(l datapath.LinkStatus) bool { return l.Hook == hook && l.Interface == device })
	if i < 0 {
		return nil, 0, fmt.Errorf("no hook %s at %s: %+v", hook, device, links)
	}
	at, err := net.InterfaceByName(device)
	if err != nil {
		return nil, 0, err
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(links[i].ProgramID))
	return program, uint32(at.Index), err
}

// timeRun runs an XDP program once on a frame from an interface and says how long it took. The
// library would not tell that of a run with a context, which names the interface.
func timeRun(program *ebpf.Program, frame []byte, index uint32) (int64, error) {
	context := struct {
		Data, DataEnd, DataMeta, Ifindex, Queue,
		Egress uint32
	}{DataEnd: uint32(len(frame)), Ifindex: index}
	out := make([]byte, len(frame)+256)
	attr := struct {
		program, result  uint32
		inLen, outLen    uint32
		in, out          uint64
		repeat, duration uint32
		contextLen, _    uint32
		context, _       uint64
		_, _, _, _       uint32
	}{
		program: uint32(program.FD()), inLen: uint32(len(frame)), outLen: uint32(len(out)),
		repeat: 1,
		in:     address(&frame[0]), out: address(&out[0]),
		contextLen: uint32(unsafe.Sizeof(context)),
		context:    address(&context),
	}
	const xdpRedirect = 4
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN,
		uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(frame)
	runtime.KeepAlive(out)
	runtime.KeepAlive(&context)
	switch {
	case errno != 0:
		return 0, fmt.Errorf("run a program: %w", errno)
	case attr.result != xdpRedirect:
		return 0, fmt.Errorf("the program's verdict is %d, want a redirect", attr.result)
	}
	return int64(attr.duration), nil
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

func udpPacket(from, to netip.Addr, length int) []byte {
	data := newPacket(from, to, length, 1)[inet.IPv4Len+inet.UDPLen:]
	return inet.Packet{
		Src: from, Dst: to, TTL: inet.DefaultTTL, Fragment: inet.DontFragment,
		Protocol: unix.IPPROTO_UDP, Payload: inet.UDP(40000, 53, data),
	}.IP()
}
