package e2e

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab/traffic"
)

const (
	// espStart is SPI, sequence number and IV.
	espStart = 16
	// keyAndSalt is how a lane's key lies in memory, wherever an agent has had it: 32 bytes, then
	// the salt's 4.
	keyAndSalt = 36
)

// sealedSample is a packet from the wire of which the beginning inside is known: enough to know its
// key when one sees it.
type sealedSample struct {
	name  string
	iv    [8]byte
	first [16]byte // the first sealed bytes
	from  [4]byte  // the inner source
}

// openedBy says whether key and salt open the sample: its inside is then IPv4 and UDP from the
// known source.
func (s *sealedSample) openedBy(block cipher.Block, salt []byte) bool {
	var counter, plain [16]byte
	copy(counter[:], salt)
	copy(counter[4:], s.iv[:])
	counter[15] = 2 // GCM's first block of text
	block.Encrypt(plain[:], counter[:])
	for i := range plain {
		plain[i] ^= s.first[i]
	}
	return plain[0] == 0x45 && plain[9] == unix.IPPROTO_UDP && bytes.Equal(plain[12:], s.from[:])
}

// grepSealing looks at every 36 bytes of memory that could be random, for those that open a sample.
func grepSealing(memory []byte, samples []*sealedSample) []*sealedSample {
	var found []*sealedSample
	zeros, high := 0, 0
	count := func(b byte, by int) {
		if b == 0 {
			zeros += by
		}
		if b >= 0x80 {
			high += by
		}
	}
	for i, b := range memory {
		count(b, 1)
		if i >= keyAndSalt {
			count(memory[i-keyAndSalt], -1)
		}
		// Text, numbers and pointers are no keys. One key in 70 000 has four zeros.
		if i < keyAndSalt-1 || zeros > 3 || high < 4 {
			continue
		}
		window := memory[i-keyAndSalt+1 : i+1]
		block, err := aes.NewCipher(window[:32])
		if err != nil {
			return nil
		}
		for _, s := range samples {
			if s.openedBy(block, window[32:]) {
				found = append(found, s)
			}
		}
	}
	return found
}

// TestGrepSealing makes sure that the search finds a key where there is one.
func TestGrepSealing(t *testing.T) {
	memory := make([]byte, 4096)
	_, _ = rand.Read(memory)
	at := 1777
	block, err := aes.NewCipher(memory[at : at+32])
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	s := &sealedSample{iv: [8]byte{7: 9}, from: [4]byte{10, 77, 1, 10}}
	inner := []byte{0x45, 0, 0, 60, 1, 2, 0, 0, 63, 17, 3, 4, 10, 77, 1, 10, 10, 77, 2, 100}
	copy(s.first[:],
		aead.Seal(nil, append(bytes.Clone(memory[at+32:at+36]), s.iv[:]...), inner, nil))
	if found := grepSealing(memory, []*sealedSample{s}); len(found) != 1 || found[0] != s {
		t.Errorf("found %v", found)
	}
	memory[at]++
	if found := grepSealing(memory, []*sealedSample{s}); len(found) != 0 {
		t.Errorf("found %v", found)
	}
}

// TestDirectionKeysAreNotInMemory takes sealed packets from the wire and looks in the agents'
// memory for the keys that open them: they are in the kernel, and nowhere else.
func TestDirectionKeysAreNotInMemory(t *testing.T) {
	l := useSealed(t)
	rotate(t, l, agents(l)[0])
	client, server := l.Pod("client"), l.Pod("server")
	var mu sync.Mutex
	samples := map[string]*sealedSample{}
	lengths := map[string]int{}
	watch := watchWire(t, l, podRules(l), func(f encryptcheck.Frame) {
		s, length := sample(f)
		if s == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		// Only lengths that come again and again are of the streams.
		if lengths[fmt.Sprint(s.name, length)]++; lengths[fmt.Sprint(s.name, length)] == 50 {
			samples[s.name] = s
		}
	})
	for _, p := range []path{{client, server}, {server, client}} {
		udp, err := traffic.StartUDP(t.Context(),
			traffic.UDPOptions{From: p.from.NetNS, To: p.to.NetNS,
				Dst: netip.AddrPortFrom(p.to.IPv4, 0), PPS: 500})
		if err != nil {
			t.Fatal(err)
		}
		defer udp.Stop()
	}
	eventually(t, "packets both ways", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(samples) < 2 {
			return fmt.Errorf("%d directions and lanes", len(samples))
		}
		return nil
	})
	watch.stop(t)
	var list []*sealedSample
	for _, s := range samples {
		source := server.IPv4
		if s.from[3] == 1 { // a's own address, until now
			source = client.IPv4
		}
		s.from = source.As4()
		list = append(list, s)
	}
	for _, n := range agents(l) {
		bytes := 0
		for _, region := range memoryOf(t, n.PID()) {
			bytes += len(region.data)
			for _, s := range grepSealing(region.data, list) {
				t.Errorf("a key of %s is in the memory of agent %s, in %s", s.name, n.Name,
					region.name)
			}
		}
		t.Logf("agent %s: %d MiB, %d keys looked for", n.Name, bytes>>20, len(list))
	}
}

// sample takes what is needed of a sealed frame from node a or b.
func sample(f encryptcheck.Frame) (*sealedSample, int) {
	p, err := inet.Parse(f.Data)
	if err != nil {
		return nil, 0
	}
	e, ok := encryptcheck.ParseESP(p, 4500)
	if !ok || len(p.Payload) < espStart+16 {
		return nil, 0
	}
	last := p.Src.As16()[15] // 1 for node a, 2 for b
	s := &sealedSample{name: fmt.Sprintf("%s to %s epoch %d lane %d", p.Src, p.Dst, e.Epoch(),
		e.Lane()), from: [4]byte{3: last}}
	binary.BigEndian.PutUint64(s.iv[:], e.IV)
	copy(s.first[:], p.Payload[espStart:])
	return s, len(p.Payload)
}
