package esp

import (
	"bytes"
	"crypto/aes"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
)

// TestNoSecretsInMaps seals and opens packets and then looks for the key, H, the salt and what H
// can be computed from in everything that a dump of the maps shows.
func TestNoSecretsInMaps(t *testing.T) {
	b := newSABed(t, "auto")
	secrets := map[string][]byte{}
	random := rand.NewChaCha8([32]byte{3})
	for _, out := range []bool{true, false} {
		sa := testSA(out, 7, 1)
		random.Read(sa.Key[:]) // both directions differ
		random.Read(sa.Salt[:])
		name := fmt.Sprintf("out %t: ", out)
		block, err := aes.NewCipher(sa.Key[:])
		must(t, err)
		h := make([]byte, 16)
		block.Encrypt(h, h)
		counter := append(nonce(sa.Salt, 3), 0, 0, 0, 1)
		first := make([]byte, 16)
		block.Encrypt(first, counter)
		secrets[name+"key, first half"], secrets[name+
			"key, second half"] = bytes.Clone(sa.Key[:16]), bytes.Clone(sa.Key[16:])
		secrets[name+"H, left"], secrets[name+"H, right"] = h[:8], h[8:]
		secrets[name+"salt"] = bytes.Clone(sa.Salt[:])
		secrets[name+"first counter block, left"], secrets[name+
			"first counter block, right"] = first[:8], first[8:]
		p := sealed{sa: firstSA, iv: 3, aad: make([]byte, 12), text: make([]byte, 100)}
		whole := reference(t, sa.Key).Seal(nil, nonce(sa.Salt, 3), p.text, p.aad)
		hash := make([]byte, 16)
		for i := range hash {
			hash[i] = whole[100+i] ^ first[i]
		}
		secrets[name+"GHASH, left"], secrets[name+"GHASH, right"] = hash[:8], hash[8:]
		must(t, b.InstallSA(sa))
		if out {
			b.seal(t, "xdp", p)
		} else {
			p.text = whole
			_, err := b.open(t, "xdp", p)
			must(t, err)
		}
		b.searchMaps(t, secrets)
	}
	if b.request() != (saRequest{State: bpf.SaLive, ID: firstSA}) {
		t.Error("the request still holds something")
	}
}

func (b *saHarness) request() saRequest { return *b.writer.request }

func (b *saHarness) searchMaps(t *testing.T, secrets map[string][]byte) {
	t.Helper()
	for name, m := range b.maps.ByName {
		dump := dumpMap(t, m)
		for what, secret := range secrets {
			reversed := bytes.Clone(secret)
			slices.Reverse(reversed)
			if bytes.Contains(dump, secret) || bytes.Contains(dump, reversed) {
				t.Errorf("a dump of %s shows %s", name, what)
			}
		}
	}
}

// dumpMap is every key and value of a map, as bpftool reads them, and what bpftool prints where it
// is installed.
func dumpMap(t *testing.T, m *ebpf.Map) []byte {
	t.Helper()
	var dump []byte
	keys, err := bpftest.Keys(m)
	must(t, err)
	if m.Type() == ebpf.PerCPUArray || m.Type() == ebpf.Hash || m.Type() == ebpf.LRUHash {
		for _, key := range keys {
			if m.Type() == ebpf.PerCPUArray {
				var values [][]byte
				must(t, m.Lookup(key, &values))
				dump = append(dump, bytes.Join(values, nil)...)
				continue
			}
			value, err := m.LookupBytes(key)
			must(t, err)
			dump = append(append(dump, key...), value...)
		}
	}
	info, err := m.Info()
	must(t, err)
	id, _ := info.ID()
	if tool, err := exec.LookPath("bpftool"); err == nil && m.Type() == ebpf.Hash {
		text, _ := exec.Command(tool, "map", "dump", "id", fmt.Sprint(id)).CombinedOutput()
		dump = append(dump, text...)
	}
	return dump
}
