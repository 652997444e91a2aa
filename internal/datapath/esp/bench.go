package esp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// sandbox is the crypto core by itself, on maps of its own: for tests and measurements.
type sandbox struct {
	*Associations
	maps        *bpf.Maps
	programs    map[string]*ebpf.Program // "xdp weft_test_seal"
	collections []*ebpf.Collection
}

// newSandbox makes a sandbox with the peer "b".
func newSandbox(engine string, lanes int) (*sandbox, error) {
	b := &sandbox{maps: &bpf.Maps{ByName: map[string]*ebpf.Map{}},
		programs: map[string]*ebpf.Program{}}
	if err := b.load(&Options{Engine: engine, NoSealer: "a sandbox has none", AllowTableAES: true,
		Lanes: lanes}); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.EnterPeer("b", 1)
	return b, nil
}

func (b *sandbox) load(opts *Options) error {
	for _, object := range []string{"sa_xdp", "sa_test_xdp"} {
		spec, err := bpf.LoadSpec(object)
		if err != nil {
			return err
		}
		for name, ms := range spec.Maps {
			if !strings.HasPrefix(name, "weft_") || b.maps.ByName[name] != nil {
				continue
			}
			if b.maps.ByName[name], err = ebpf.NewMap(ms); err != nil {
				return fmt.Errorf("create map %s: %w", name, err)
			}
		}
	}
	m := b.maps
	m.SAOut, m.SAIn, m.Peers = m.ByName["weft_sa_out"], m.ByName["weft_sa_in"], m.ByName["weft_peers"]
	m.SAUsed, m.SANodes, m.VM = m.ByName["weft_sa_used"], m.ByName["weft_sa_nodes"], m.ByName["weft_vm"]
	var err error
	if b.Associations, err = Open(Host{Maps: m, Log: slog.New(slog.DiscardHandler)},
		opts); err != nil {
		return err
	}
	for _, context := range []string{"xdp", "tc"} {
		if err := b.loadPrograms(context); err != nil {
			return err
		}
	}
	return nil
}

func (b *sandbox) loadPrograms(context string) error {
	spec, err := bpf.LoadSpec("sa_test_" + context)
	if err != nil {
		return err
	}
	shared := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if b.maps.ByName[name] != nil {
			shared[name] = b.maps.ByName[name]
		}
	}
	for _, program := range spec.Programs {
		if program.Type == ebpf.XDP {
			program.Flags |= unix.BPF_F_XDP_HAS_FRAGS
		}
	}
	collection, err := ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return fmt.Errorf("load sa_test_%s: %w", context, err)
	}
	b.collections = append(b.collections, collection)
	for name, program := range collection.Programs {
		b.programs[context+" "+name] = program
	}
	return nil
}

// Close frees everything that the sandbox made.
func (b *sandbox) Close() error {
	for _, c := range b.collections {
		c.Close()
	}
	defer b.maps.Close()
	if b.Associations == nil {
		return nil
	}
	return b.Associations.Close()
}

// testHead is struct test_head of bpf/sa_test.bpf.c.
type testHead struct {
	Ethernet [14]byte
	AADLen   uint16
	ID       uint32
	Len      uint32
	IV       [8]byte
	AAD      [16]byte
	Result   int32
	Pad      uint32
}

const testHeadLen = 56

// testFrame is a frame for the sandbox's programs.
func testFrame(id uint32, iv uint64, aad, text []byte, textLen int) []byte {
	head := testHead{AADLen: uint16(len(aad)), ID: id, Len: uint32(textLen)}
	binary.BigEndian.PutUint64(head.IV[:], iv)
	copy(head.AAD[:], aad)
	frame, err := binary.Append(make([]byte, 0, testHeadLen+len(text)+16), binary.NativeEndian,
		&head)
	if err != nil {
		panic(err) // the struct has a fixed size
	}
	return append(frame, text...)
}

// CryptoTiming is what one packet's cryptography takes, without framing and forwarding. AES and
// GHASH are parts of Seal, 0 where the engine does not let them be told apart.
type CryptoTiming struct {
	Engine string        `json:"engine"`
	Size   int           `json:"size"` // bytes of the inner packet, trailer included
	AES    time.Duration `json:"aes"`
	GHASH  time.Duration `json:"ghash"`
	Seal   time.Duration `json:"seal"`
	Open   time.Duration `json:"open"`
}

// CryptoBench measures an engine ("bpf", "kmod" or "auto") for each size: the shortest of several
// rounds of n packets each, in XDP.
func CryptoBench(engine string, sizes []int, n int) ([]CryptoTiming, error) {
	b, err := newSandbox(engine, 1)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	for _, out := range []bool{true, false} {
		sa := &SA{Node: "b", Out: out, Epoch: 1, ID: 1, Number: 1, Key: [32]byte{1},
			Expires: time.Now().Add(time.Hour)}
		if err := b.InstallSA(sa); err != nil {
			return nil, err
		}
	}
	var list []CryptoTiming
	for _, size := range sizes {
		t, err := b.measure(size, n)
		if err != nil {
			return nil, fmt.Errorf("measure packets of %d bytes: %w", size, err)
		}
		list = append(list, t)
	}
	return list, nil
}

const benchRounds = 10

func (b *sandbox) measure(size, n int) (CryptoTiming, error) {
	t := CryptoTiming{Engine: b.EngineStatus().Active, Size: size}
	frame := append(testFrame(saKey(1, 1, 0), 1, make([]byte, 12), make([]byte, size), size),
		make([]byte, 16)...)
	var both time.Duration
	parts := map[string]*time.Duration{"weft_test_seal": &t.Seal, "weft_test_both": &both}
	if t.Engine == "bpf" {
		parts["weft_test_aes"], parts["weft_test_ghash"] = &t.AES, &t.GHASH
	}
	for range benchRounds { // interleaved, so that all see the same machine
		for name, shortest := range parts {
			code, took, err := b.programs["xdp "+name].Benchmark(frame, n, nil)
			if err != nil {
				return t, err
			}
			if code != 0 {
				return t, fmt.Errorf("%s: %w", name, unix.Errno(code))
			}
			if *shortest == 0 || took < *shortest {
				*shortest = took
			}
		}
	}
	t.Open = both - t.Seal
	return t, nil
}
