package datapath

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestAgainstGo seals and opens packets of every length, with random keys' worth of text, and compares with
// crypto/cipher.
func TestAgainstGo(t *testing.T) {
	b := newSABed(t)
	out, in := testSA(true, 7, 9), testSA(false, 7, 9)
	aead, salt := reference(t, out), out.Salt
	must(t, b.InstallSA(out))
	must(t, b.InstallSA(in))
	random := rand.NewChaCha8([32]byte{1})
	rounds := 4
	count := 0
	for round := range rounds {
		for size := 1; size <= 1500; size++ {
			p := sealed{sa: saKey(1, 1, 0), iv: random.Uint64(), aad: make([]byte, 12), text: make([]byte, size)}
			random.Read(p.aad)
			random.Read(p.text)
			context := contexts[(round+size)%2]
			got := b.seal(t, context, p)
			want := aead.Seal(nil, nonce(salt, p.iv), p.text, p.aad)
			if !bytes.Equal(got, want) {
				t.Fatalf("%s: seal of %d bytes\ngot  %x\nwant %x", context, size, got, want)
			}
			text := p.text
			p.text = got
			opened, err := b.open(t, context, p)
			if err != nil || !bytes.Equal(opened, text) {
				t.Fatalf("%s: open of %d bytes: %v\ngot  %x\nwant %x", context, size, err, opened, text)
			}
			count++
		}
	}
	t.Logf("%d packets", count)
}
