package esp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/inet"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	must(t, err)
	return b
}

// knownAnswers are AES-256-GCM: NIST's CAVP (gcmEncryptExtIV256.rsp) and test cases 14 and 15 of
// the paper that proposed GCM (McGrew and Viega).
var knownAnswers = []struct{ name, key, iv, text, aad, sealed string }{
	{
		"CAVP, 16 bytes, no AAD",
		"31bdadd96698c204aa9ce1448ea94ae1fb4a9a0b3c9d773b51bb1822666b8f22",
		"0d18e06c7c725ac9e362e1ce",
		"2db5168e932556f8089a0622981d017d", "",
		"fa4362189661d163fcd6a56d8bf0405ad636ac1bbedd5cc3ee727dc2ab4a9489",
	},
	{
		"CAVP, 16 bytes, AAD of 16",
		"92e11dcdaa866f5ce790fd24501f92509aacf4cb8b1339d50c9c1240935dd08b",
		"ac93a1a6145299bde902f21a",
		"2d71bcfa914e4ac045b2aa60955fad24", "1e0889016f67601c8ebea4943bc23ad6",
		"8995ae2e6df3dbf96fac7b7137bae67feca5aa77d51d4a0a14d9c51e1da474ab",
	},
	{
		"case 15, four blocks", "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
		"cafebabefacedbaddecaf888",
		"d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255", "",
		"522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015adb094dac5d93471bdec1a502270e3cc6c",
	},
}

func TestAEADKnownAnswers(t *testing.T) { forEachEngine(t, checkAEADKnownAnswers) }

func checkAEADKnownAnswers(t *testing.T, b *saHarness) {
	for i, row := range knownAnswers {
		if b.writer.engine == bpf.EngineKmod && len(row.aad) != 24 {
			continue // the module takes ESP's AAD only
		}
		t.Run(row.name, func(t *testing.T) {
			iv := unhex(t, row.iv)
			for _, out := range []bool{true, false} {
				sa := testSA(out, uint64(i+1), 0)
				copy(sa.Key[:], unhex(t, row.key))
				copy(sa.Salt[:], iv)
				must(t, b.InstallSA(sa))
			}
			p := sealed{sa: firstSA, iv: binary.BigEndian.Uint64(iv[4:]), aad: unhex(t, row.aad),
				text: unhex(t, row.text)}
			for _, context := range contexts {
				got := b.seal(t, context, p)
				if hex.EncodeToString(got) != row.sealed {
					t.Fatalf("%s: sealed\ngot  %x\nwant %s", context, got, row.sealed)
				}
				back := p
				back.text = got
				if text, err := b.open(t, context, back); err != nil || !bytes.Equal(text, p.text) {
					t.Fatalf("%s: opened: %v\ngot  %x\nwant %x", context, err, text, p.text)
				}
			}
		})
	}
}

// checkPacket seals and opens one packet and compares both with Go's AES-GCM.
func (b *saHarness) checkPacket(t *testing.T, context string, p sealed, want []byte) {
	t.Helper()
	got := b.seal(t, context, p)
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: seal of %d bytes\ngot  %x\nwant %x", context, len(p.text), got, want)
	}
	text := p.text
	p.text = got
	opened, err := b.open(t, context, p)
	if err != nil || !bytes.Equal(opened, text) {
		t.Fatalf("%s: open of %d bytes: %v\ngot  %x\nwant %x", context, len(text), err, opened,
			text)
	}
}

// TestAEADRandom seals and opens 10 500 packets, each length up to a wire's MTU seven times, under
// seven keys.
func TestAEADRandom(t *testing.T) { forEachEngine(t, checkAEADRandom) }

func checkAEADRandom(t *testing.T, b *saHarness) {
	random := rand.NewChaCha8([32]byte{1})
	for round := range 7 {
		var key [32]byte
		var salt [4]byte
		random.Read(key[:])
		random.Read(salt[:])
		if round == 0 {
			key, salt = [32]byte{31: 1}, [4]byte{}
		}
		aead := reference(t, key)
		for _, out := range []bool{true, false} {
			sa := testSA(out, uint64(round+1), 0)
			sa.Key, sa.Salt = key, salt
			must(t, b.InstallSA(sa))
		}
		for size := 1; size <= 1500; size++ {
			p := sealed{sa: firstSA, iv: random.Uint64(), aad: make([]byte, 12),
				text: make([]byte, size)}
			random.Read(p.aad)
			random.Read(p.text)
			b.checkPacket(t, contexts[(round+size)%2], p,
				aead.Seal(nil, nonce(salt, p.iv), p.text, p.aad))
		}
	}
}

// TestAEADEdges are values at the ends of their ranges, and jumbo frames, which are not linear.
func TestAEADEdges(t *testing.T) { forEachEngine(t, checkAEADEdges) }

func checkAEADEdges(t *testing.T, b *saHarness) {
	ones := bytes.Repeat([]byte{0xff}, inet.MaxSealedText)
	zeros := make([]byte, inet.MaxSealedText)
	key, salt := [32]byte(ones), [4]byte(ones)
	aead := reference(t, key)
	for _, out := range []bool{true, false} {
		sa := testSA(out, 1, 0)
		sa.Key, sa.Salt = key, salt
		must(t, b.InstallSA(sa))
	}
	for _, iv := range []uint64{0, 1, 1<<32 - 1, 1 << 32, 1<<64 - 1} {
		for _, text := range [][]byte{ones, zeros} {
			for _, size := range []int{1, 15, 16, 17, 79, 80, 81, 95, 96, 97, 111, 112, 127, 128,
				129, 1408, 3000, inet.MaxSealedText / 2, inet.MaxSealedText - 1,
				inet.MaxSealedText} {
				p := sealed{sa: firstSA, iv: iv, aad: ones[:12], text: text[:size]}
				for _, context := range contexts {
					if size > 3000 && (context == "tc" || b.writer.engine == bpf.EngineKmod) {
						continue // test_run takes no larger skb; the module needs linear
					}
					b.checkPacket(t, context, p, aead.Seal(nil, nonce(salt, iv), p.text, p.aad))
				}
			}
		}
	}
}

// TestAEADBitFlips flips every bit of AAD, IV, ciphertext and tag in turn. All must be refused, and
// nothing of the plaintext may get into the packet.
func TestAEADBitFlips(t *testing.T) { forEachEngine(t, checkAEADBitFlips) }

func checkAEADBitFlips(t *testing.T, b *saHarness) {
	sa := testSA(false, 1, 5)
	aead, salt := reference(t, sa.Key), sa.Salt
	must(t, b.InstallSA(sa))
	random := rand.NewChaCha8([32]byte{2})
	for i, size := range []int{1, 16, 31, 62, 128, 200} {
		p := sealed{sa: firstSA, iv: random.Uint64(), aad: make([]byte, 12),
			text: make([]byte, size)}
		random.Read(p.aad)
		random.Read(p.text)
		plain := p.text
		whole := aead.Seal(nil, nonce(salt, p.iv), p.text, p.aad)
		for bit := range (12 + 8 + len(whole)) * 8 {
			forged := sealed{sa: p.sa, aad: bytes.Clone(p.aad), text: bytes.Clone(whole)}
			iv := binary.BigEndian.AppendUint64(nil, p.iv)
			flip := [][]byte{forged.aad, iv, forged.text}
			at := bit / 8
			for len(flip) > 0 && at >= len(flip[0]) {
				at -= len(flip[0])
				flip = flip[1:]
			}
			flip[0][at] ^= 1 << (bit % 8)
			forged.iv = binary.BigEndian.Uint64(iv)
			left, err := b.open(t, contexts[(i+bit)%2], forged)
			if !errors.Is(err, errBadTag) {
				t.Fatalf("packet of %d bytes with bit %d flipped: %v", size, bit, err)
			}
			if b.writer.engine == bpf.EngineKmod {
				continue // works in place: the caller drops the packet
			}
			if size >= 16 && bytes.Contains(left, plain[:16]) || !bytes.Equal(left, forged.text) {
				t.Fatalf("packet of %d bytes with bit %d flipped was changed: %x", size, bit, left)
			}
		}
	}
}

// TestAEADRefusals are calls that no packet should be able to bring about.
func TestAEADRefusals(t *testing.T) { forEachEngine(t, checkAEADRefusals) }

func checkAEADRefusals(t *testing.T, b *saHarness) {
	must(t, b.InstallSA(testSA(true, 1, 5)))
	must(t, b.InstallSA(testSA(false, 1, 5)))
	text := make([]byte, 100)
	frame := func(id uint32, length int) []byte { return testFrame(id, 1, make([]byte, 12), text, length) }
	for name, row := range map[string]struct {
		program string
		frame   []byte
	}{
		"seal with no SA":           {"weft_test_seal", frame(saKey(2, 1, 0), 64)},
		"open with no SA":           {"weft_test_open", frame(saKey(2, 1, 0), 64)},
		"seal nothing":              {"weft_test_seal", frame(firstSA, 0)},
		"open nothing":              {"weft_test_open", frame(firstSA, 0)},
		"seal without room":         {"weft_test_seal", frame(firstSA, 90)},
		"open more than there is":   {"weft_test_open", frame(firstSA, 90)},
		"seal more than there is":   {"weft_test_seal", frame(firstSA, 101)},
		"seal more than the buffer": {"weft_test_seal", frame(firstSA, inet.MaxSealedText+1)},
		"open more than the buffer": {"weft_test_open", frame(firstSA, inet.MaxSealedText+1)},
		"open a length that wraps":  {"weft_test_open", frame(firstSA, 1<<32-8)},
	} {
		for _, context := range contexts {
			if _, code := b.run(t, context, row.program, row.frame); code == 0 {
				t.Errorf("%s: %s: not refused", context, name)
			}
		}
	}
}

// TestLongestText holds inet.MaxSealedText equal to MAX_TEXT in bpf/lib/gcm.h: that much is sealed,
// and not a byte more, although the packet has room.
func TestLongestText(t *testing.T) {
	b := newSABed(t, "bpf")
	must(t, b.InstallSA(testSA(true, 1, 0)))
	for size, fits := range map[int]bool{inet.MaxSealedText: true, inet.MaxSealedText + 1: false} {
		frame := testFrame(firstSA, 1, make([]byte, 12), make([]byte, size+16), size)
		if _, code := b.run(t, "xdp", "weft_test_seal", frame); (code == 0) != fits {
			t.Errorf("%d bytes: code %d, want them to be sealed: %v", size, code, fits)
		}
	}
}

func TestCryptoBench(t *testing.T) {
	newSABed(t, "bpf") // skips without root
	rows, err := CryptoBench("bpf", []int{64, 1400}, 20)
	must(t, err)
	for _, r := range rows {
		if r.Engine != "bpf" || r.AES <= 0 || r.GHASH <= 0 || r.Seal <= 0 ||
			r.Open <= -time.Second {
			t.Errorf("%+v", r)
		}
		t.Logf("%+v", r)
	}
}
