package espref

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"testing"
)

func testSA() *SA {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	return &SA{SPI: 0x10000100, Key: key, Salt: [4]byte{0xaa, 0xbb, 0xcc, 0xdd}}
}

func inner(length int) []byte {
	p := make([]byte, length)
	for i := range p {
		p[i] = byte(i * 7)
	}
	p[0] = 0x45
	return p
}

// TestPublished opens a packet of draft-mcgrew-gcm-test-01, "Test Cases for the use of GCM in IPsec
// ESP": the one with a 64-bit sequence number.
func TestPublished(t *testing.T) {
	unhex := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	sa := &SA{SPI: 0x4321, Key: unhex("4c80cdefbb5d10da906ac73c3613a634"),
		Salt: [4]byte(unhex("2e443b68"))}
	want := unhex("45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000" +
		"00000000045f736970045f756470037369700963796265726369747902646b0000210001")
	esp := unhex("00004321" + "00000000" + "4956ed7e3b244cfe" +
		"fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d" +
		"15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732459018148f6cbe722fd04796562dfdb4")
	p, text, err := sa.open(esp, 0x87654321)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text[:len(want)], want) || p.Seq != 0x87654321<<32 {
		t.Errorf("got %+v, text %x", p, text)
	}
	again, err := sa.SealText(p.Seq, p.IV, text)
	if err != nil || !bytes.Equal(again, esp) {
		t.Errorf("sealed again: %x, %v", again, err)
	}
}

func TestEverySize(t *testing.T) {
	sa := testSA()
	for length := 1; length <= 1500; length++ {
		want, seq := inner(length), uint64(length)<<30
		esp, err := sa.Seal(seq, want)
		if err != nil {
			t.Fatal(err)
		}
		if len(esp) != Len(length) || (len(esp)-HeaderLen-TagLen)%4 != 0 {
			t.Errorf("%d bytes inside: ESP of %d, want %d, a whole number of words", length,
				len(esp), Len(length))
		}
		p, err := sa.Open(esp, uint32(seq>>32))
		if err != nil {
			t.Fatal(err)
		}
		if p.SPI != sa.SPI || p.Seq != seq || p.IV != seq || p.Next != NextIPv4 ||
			!bytes.Equal(p.Inner, want) {
			t.Errorf("%d bytes inside: got back %+v", length, p)
		}
	}
	if _, err := sa.Seal(1, []byte{0x15}); err == nil {
		t.Error("neither IPv4 nor IPv6: want an error")
	}
}

func TestEveryBit(t *testing.T) {
	sa := testSA()
	esp, err := sa.Seal(1<<32+5, inner(61))
	if err != nil {
		t.Fatal(err)
	}
	for bit := 32; bit < 8*len(esp); bit++ { // the SPI selects the SA, and is not looked at here
		forged := bytes.Clone(esp)
		forged[bit/8] ^= 1 << (bit % 8)
		if _, err := sa.Open(forged, 1); !errors.Is(err, ErrTag) {
			t.Errorf("bit %d: %v, want %v", bit, err, ErrTag)
		}
	}
	if _, err := sa.Open(esp, 0); !errors.Is(err, ErrTag) {
		t.Errorf("upper half: %v, want %v", err, ErrTag)
	}
	other := *sa
	other.SPI++
	if _, err := other.Open(esp, 1); !errors.Is(err, ErrTag) {
		t.Errorf("SPI: %v, want %v", err, ErrTag)
	}
	for length := range len(esp) {
		if _, err := sa.Open(esp[:length], 1); err == nil {
			t.Errorf("cut to %d bytes: opened", length)
		}
	}
}

func TestPaddingRefused(t *testing.T) {
	sa := testSA()
	for name, text := range map[string][]byte{
		"longer than the text":        {0x45, 1, 2, 200, NextIPv4},
		"other bytes":                 {0x45, 9, 9, 2, NextIPv4},
		"counted from 0":              {0x45, 0, 1, 2, NextIPv4},
		"nothing, not even a trailer": {},
	} {
		esp, err := sa.SealText(7, 7, text)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := sa.Open(esp, 0); err == nil {
			t.Errorf("%s: opened as %+v", name, p)
		}
	}
}

func TestHigh(t *testing.T) {
	const window = 1024
	for name, c := range map[string]struct {
		highest, seq uint64
	}{
		"first":                           {0, 1},
		"next":                            {500, 501},
		"far ahead":                       {500, 1 << 30},
		"in the window":                   {5000, 4000},
		"last of the window":              {5000, 5000 - window + 1},
		"over the edge":                   {1<<32 - 1, 1 << 32},
		"well over the edge":              {1<<32 - 10, 1<<32 + 2000},
		"before the edge, seen beyond":    {1 << 32, 1<<32 - 1},
		"the window's last, seen beyond":  {1<<32 + 10, 1<<32 + 10 - window + 1},
		"beyond, seen beyond":             {1<<32 + 10, 1<<32 + 11},
		"edge of the window on the edge":  {1<<32 + window - 1, 1 << 32},
		"second edge":                     {2<<32 - 3, 2<<32 + 3},
		"behind the second edge":          {2<<32 + 3, 2<<32 - 3},
		"just inside, window on the edge": {1<<32 + window - 2, 1<<32 - 1},
	} {
		if got := High(uint32(c.seq), c.highest, window); got != uint32(c.seq>>32) {
			t.Errorf("%s: %d after %d: upper half %d, want %d", name, c.seq, c.highest, got,
				c.seq>>32)
		}
	}
}

func TestWrap(t *testing.T) {
	esp, err := testSA().Seal(3, inner(99))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []Outer{
		{netip.MustParseAddrPort("192.0.2.1:50123"), netip.MustParseAddrPort("192.0.2.2:4500"), 64},
		{netip.MustParseAddrPort("[2001:db8::1]:50123"),
			netip.MustParseAddrPort("[2001:db8::2]:4500"), 3},
	} {
		packet := o.Wrap(esp)
		got, out, err := Unwrap(packet)
		if err != nil || got != o || !bytes.Equal(out, esp) {
			t.Errorf("%v: %+v, %x, %v", o, got, out, err)
		}
		for length := range packet {
			if _, _, err := Unwrap(packet[:length]); err == nil {
				t.Errorf("%v: cut to %d bytes: taken", o, length)
			}
		}
	}
	v6 := Outer{From: netip.MustParseAddrPort("[2001:db8::1]:1"),
		To: netip.MustParseAddrPort("[2001:db8::2]:4500")}.Wrap(esp)
	v6[60] ^= 1
	if _, _, err := Unwrap(v6); err == nil {
		t.Error("a changed byte under a UDP checksum: taken")
	}
}
