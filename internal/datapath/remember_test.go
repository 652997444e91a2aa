package datapath

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"weft.dev/weft/internal/datapath/bpf"
)

// decisions gives every cached decision of the IPv4 flows to change, as bytes.
func (b *harness) decisions(t *testing.T, change func(key bpf.Key4, decision []byte)) {
	t.Helper()
	var key bpf.Key4
	var f bpf.Flow
	changed := map[bpf.Key4]bpf.Flow{}
	entries := b.maps.Flows4.Iterate()
	for entries.Next(&key, &f) {
		for dir := range f.Half {
			if f.Half[dir].Cached.Generation != 0 {
				change(key,
					(*[unsafe.Sizeof(bpf.Cached{})]byte)(unsafe.Pointer(&f.Half[dir].Cached))[:])
			}
		}
		changed[key] = f
	}
	must(t, entries.Err())
	for key, f := range changed {
		must(t, b.maps.Flows4.Put(&key, &f))
	}
}

// TestMixedDecision: two CPUs may write a decision at once, or the table hand its memory to another
// flow meanwhile. What is left then, words of the one and words of the other, is used for no
// packet.
func TestMixedDecision(t *testing.T) {
	b := newHarness(t)
	frame := fromA(peer4).udp(1000, 53, 20).bytes()
	for _, context := range contexts {
		traced := b.traced(t, context, "from_pod")
		check := func(what string, change func(key bpf.Key4, decision []byte)) {
			b.reset(t)
			warm(t, b, context, "from_pod", "wta", frame)
			changed := 0
			b.decisions(t, func(key bpf.Key4, decision []byte) { changed++; change(key, decision) })
			if changed != 1 {
				t.Fatalf("%s: %d decisions, want 1", context, changed)
			}
			if hasStep(b.steps(t, traced, context, "wta", frame), bpf.StepCacheHit) {
				t.Errorf("%s: a decision %s was used", context, what)
			}
			if _, out := b.send(t, context, "from_pod", "wta", frame); toPeer(frame, out) != nil {
				t.Errorf("%s: behind a decision %s: %v", context, what, toPeer(frame, out))
			}
			if !hasStep(b.steps(t, traced, context, "wta", frame), bpf.StepCacheHit) {
				t.Errorf("%s: a decision %s was not made anew", context, what)
			}
		}
		for i := range int(unsafe.Sizeof(bpf.Cached{})) {
			check(fmt.Sprintf("with another byte %d", i),
				func(_ bpf.Key4, decision []byte) { decision[i] ^= 0x10 })
		}
		// All of it was made for the generation before, but the generation itself, which another
		// CPU has written.
		check("of the generation before", func(_ bpf.Key4, decision []byte) {
			b.config.Generation++
			must(t, b.maps.Config.Put(uint32(0), &b.config))
			binary.NativeEndian.PutUint32(decision, b.config.Generation)
		})
		var other []byte
		b.reset(t)
		warm(t, b, context, "from_pod", "wta", fromA(peer4).udp(1000, 54, 20).bytes())
		b.decisions(t,
			func(_ bpf.Key4, decision []byte) { other = append([]byte(nil), decision...) })
		check("of another flow", func(_ bpf.Key4, decision []byte) { copy(decision, other) })
		random := rand.New(rand.NewPCG(1, 2))
		for i := range 200 {
			check(fmt.Sprintf("that is mixture %d of two", i), func(_ bpf.Key4, decision []byte) {
				for at := 8 + 2*random.IntN(20); at < len(decision); at += 2 + 2*random.IntN(10) {
					copy(decision[at:at+2], []byte{byte(random.Uint32()), decision[at+1] + 1})
				}
			})
		}
	}
}
