package esp

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"weft.dev/weft/internal/datapath/bpf"
)

// TestNothingIsLeftOfACipher looks at the buffer that packets are sealed and opened in, field by
// field: what H could be computed from is zeroed after each packet (see bpf/lib/gcm.h), also after
// a refused one.
func TestNothingIsLeftOfACipher(t *testing.T) {
	b := newSABed(t, "bpf")
	fields := fieldsOf(t, "sa_test_xdp", "weft_crypt")
	for _, out := range []bool{true, false} {
		must(t, b.InstallSA(testSA(out, 7, 1)))
	}
	aead, salt := reference(t, testSA(false, 7, 1).Key), testSA(false, 7, 1).Salt
	for _, size := range []int{1, 64, 100, 1400} {
		p := sealed{sa: firstSA, iv: uint64(size), aad: make([]byte, 12), text: make([]byte, size)}
		whole := aead.Seal(nil, nonce(salt, p.iv), p.text, p.aad)
		for _, context := range contexts {
			b.seal(t, context, p)
			b.nothingLeft(t, fields, "sealed")
			_, err := b.open(t, context, sealed{sa: p.sa, iv: p.iv, aad: p.aad, text: whole})
			must(t, err)
			b.nothingLeft(t, fields, "opened")
			whole[0] ^= 1
			if _, err := b.open(t, context,
				sealed{sa: p.sa, iv: p.iv, aad: p.aad, text: whole}); err == nil {
				t.Error("a forged packet was opened")
			}
			whole[0] ^= 1
			b.nothingLeft(t, fields, "refused")
		}
	}
}

// span is where a field is.
type span struct{ from, to uint32 }

// fieldsOf gives the places of the fields of a map's values.
func fieldsOf(t *testing.T, object, name string) map[string]span {
	t.Helper()
	spec, err := bpf.LoadSpec(object)
	must(t, err)
	value, ok := btf.UnderlyingType(spec.Maps[name].Value).(*btf.Struct)
	if !ok {
		t.Fatalf("%s holds %v", name, spec.Maps[name].Value)
	}
	fields := map[string]span{}
	for _, m := range value.Members {
		size, err := btf.Sizeof(m.Type)
		must(t, err)
		fields[m.Name] = span{m.Offset.Bytes(), m.Offset.Bytes() + uint32(size)}
	}
	return fields
}

func (b *saHarness) nothingLeft(t *testing.T, fields map[string]span, after string) {
	t.Helper()
	sums := fields["sums"]
	sums.to = sums.from + (sums.to-sums.from)/8 // the first of the group's blocks, to which the hash so far is added
	var values [][]byte
	must(t, b.maps.ByName["weft_crypt"].Lookup(uint32(0), &values))
	if len(values) != ebpf.MustPossibleCPU() {
		t.Fatalf("%d values", len(values))
	}
	for name, s := range map[string]span{"mask": fields["mask"], "hash": fields["hash"],
		"products": fields["products"], "halves": fields["halves"], "sums": sums} {
		if s.to <= s.from {
			t.Fatalf("the buffer has no %s", name)
		}
		for _, value := range values {
			for i, left := range value[s.from:s.to] {
				if left != 0 {
					t.Fatalf("%s: byte %d of %s is %#x", after, i, name, left)
				}
			}
		}
	}
}

// TestSealedBytes: what an SA counts is what RFC 4303 has on the wire, ESP's header and tag
// included.
func TestSealedBytes(t *testing.T) {
	b := newSABed(t, "auto")
	must(t, b.InstallSA(testSA(true, 7, 1)))
	want := uint64(0)
	for _, size := range []int{100, 1, 1400} {
		b.seal(t, "xdp",
			sealed{sa: firstSA, iv: uint64(size), aad: make([]byte, 12), text: make([]byte, size)})
		want += uint64(size) + 16 + 16
	}
	list, err := b.SAs()
	must(t, err)
	if len(list) != 1 || list[0].Bytes != want {
		t.Errorf("%+v, want %d bytes", list, want)
	}
}
