package datapath

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// saBed is the crypto core on maps of its own, without the hooks.
type saBed struct {
	*Datapath
	programs map[string]*ebpf.Program // by "xdp weft_test_seal"
}

func newSABed(t testing.TB) *saBed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
	b, err := makeSABed("auto")
	var ve *ebpf.VerifierError
	if errors.As(err, &ve) {
		t.Fatalf("%+v", ve)
	}
	must(t, err)
	t.Cleanup(b.close)
	return b
}

func makeSABed(engine string) (*saBed, error) {
	d := &Datapath{log: slog.New(slog.DiscardHandler), opts: Options{Encrypt: &EncryptOptions{Engine: engine, Lanes: 2}}}
	d.nodes.slots = map[string]uint32{"b": 1, "c": 4095}
	d.maps = &maps{byName: map[string]*ebpf.Map{}}
	b := &saBed{Datapath: d, programs: map[string]*ebpf.Program{}}
	for _, object := range []string{"sa_xdp", "sa_test_xdp"} {
		spec, err := loadSpec(object)
		if err != nil {
			return nil, err
		}
		for name, ms := range spec.Maps {
			if strings.HasPrefix(name, "weft_") && d.maps.byName[name] == nil {
				if d.maps.byName[name], err = ebpf.NewMap(ms); err != nil {
					return nil, err
				}
			}
		}
	}
	d.maps.SAOut, d.maps.SAIn = d.maps.byName["weft_sa_out"], d.maps.byName["weft_sa_in"]
	d.maps.SAUsed, d.maps.SANodes = d.maps.byName["weft_sa_used"], d.maps.byName["weft_sa_nodes"]
	d.maps.Peers = d.maps.byName["weft_peers"]
	if err := d.openEngine(); err != nil {
		return nil, err
	}
	for _, context := range contexts {
		spec, err := loadSpec("sa_test_" + context)
		if err != nil {
			return nil, err
		}
		for name, ps := range spec.Programs {
			if ps.Type == ebpf.XDP {
				ps.Flags |= unix.BPF_F_XDP_HAS_FRAGS
			}
			_ = name
		}
		collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: d.maps.replacements(spec)})
		if err != nil {
			return nil, err
		}
		for name, p := range collection.Programs {
			b.programs[context+" "+name] = p
		}
	}
	return b, nil
}

// replacements are the maps that an object uses.
func (m *maps) replacements(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	list := map[string]*ebpf.Map{}
	for name := range spec.Maps {
		if m.byName[name] != nil {
			list[name] = m.byName[name]
		}
	}
	return list
}

func (b *saBed) close() {
	for _, p := range b.programs {
		p.Close()
	}
	_ = b.Close()
}

// sealed is one run through the engine.
type sealed struct {
	sa   uint32
	iv   uint64
	aad  []byte
	text []byte // for opening: the tag behind it
}

const testHead = 16 + 4 + 4 + 8 + 16 + 8

func (b *saBed) frame(p sealed, len int) []byte {
	frame := make([]byte, 14, testHead+len)
	frame = binary.NativeEndian.AppendUint16(frame, uint16(lenOf(p.aad)))
	frame = binary.NativeEndian.AppendUint32(frame, p.sa)
	frame = binary.NativeEndian.AppendUint32(frame, uint32(len))
	frame = binary.BigEndian.AppendUint64(frame, p.iv)
	frame = append(frame, p.aad...)
	frame = append(frame, make([]byte, 16-lenOf(p.aad)+8)...)
	return append(frame, p.text...)
}

func lenOf(b []byte) int { return len(b) }

var errBadTag = errors.New("bad tag")

func (b *saBed) seal(t testing.TB, context string, p sealed) []byte {
	t.Helper()
	frame := append(b.frame(p, len(p.text)), make([]byte, 16)...)
	out, code := b.runFrame(t, context, "weft_test_seal", frame)
	if code != 0 {
		t.Fatalf("seal of %d bytes: %d", len(p.text), int32(code))
	}
	return out[testHead:]
}

func (b *saBed) open(t testing.TB, context string, p sealed) ([]byte, error) {
	t.Helper()
	frame := b.frame(p, len(p.text)-16)
	out, code := b.runFrame(t, context, "weft_test_open", frame)
	switch code {
	case 0:
		return out[testHead : len(out)-16], nil
	case uint32(unix.EBADMSG):
		return out[testHead:], errBadTag
	}
	t.Fatalf("open of %d bytes: %d", len(p.text), int32(code))
	return nil, nil
}

func (b *saBed) runFrame(t testing.TB, context, program string, frame []byte) ([]byte, uint32) {
	t.Helper()
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)), Repeat: 1}
	code, err := b.programs[context+" "+program].Run(options)
	must(t, err)
	return options.DataOut, code
}

func testSA(out bool, id uint64, key byte) *SA {
	sa := &SA{Node: "b", Out: out, Epoch: 1, Lane: 0, ID: id, Number: 1, Expires: time.Now().Add(time.Hour)}
	for i := range sa.Key {
		sa.Key[i] = key + byte(i)
	}
	sa.Salt = [4]byte{key, 2, 3, 4}
	return sa
}

// reference is Go's own AES-GCM with an SA's key.
func reference(t testing.TB, sa *SA) cipher.AEAD {
	t.Helper()
	block, err := aes.NewCipher(sa.Key[:])
	must(t, err)
	aead, err := cipher.NewGCM(block)
	must(t, err)
	return aead
}

func nonce(salt [4]byte, iv uint64) []byte { return binary.BigEndian.AppendUint64(salt[:], iv) }
