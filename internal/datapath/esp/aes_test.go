package esp

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAESDriver reads /proc/crypto as several kernels write it (testdata/crypto) and chooses: what
// the kernel would take if its time is constant, else another that the kernel has, else none.
func TestAESDriver(t *testing.T) {
	const x86, arm = "flags\t\t: fpu vme aes avx\n", "Features\t: fp asimd aes pmull\n"
	const plainX86, plainARM = "flags\t\t: fpu vme aesx\n", "Features\t: fp asimd crc32\n"
	for _, c := range []struct {
		file, cpu string
		has       string // what the kernel has besides its first choice
		first     string
		want      AESStatus
		refused   bool
	}{
		{file: "x86-6.18-fixed-time", cpu: plainX86, first: "aes-fixed-time",
			want: AESStatus{"aes-fixed-time", true}},
		{file: "x86-6.12-aesni", cpu: x86, first: "aes-aesni", want: AESStatus{"aes-aesni", true}},
		{file: "x86-6.12-generic", cpu: plainX86, first: "aes-generic",
			want: AESStatus{"aes-generic", false}, refused: true},
		{file: "x86-6.12-generic", cpu: x86, has: "aes-aesni", first: "aes-generic",
			want: AESStatus{"aes-aesni", true}},
		{file: "x86-6.12-generic", cpu: plainX86, has: "aes-fixed-time", first: "aes-generic",
			want: AESStatus{"aes-fixed-time", true}},
		{file: "arm64-6.12-ce", cpu: arm, first: "aes-ce", want: AESStatus{"aes-ce", true}},
		{file: "arm64-6.12-scalar", cpu: plainARM, first: "aes-arm64",
			want: AESStatus{"aes-arm64", false}, refused: true},
		{file: "x86-7-library", cpu: x86, first: "aes-lib", want: AESStatus{"aes-lib", true}},
		{file: "x86-7-library", cpu: plainX86, first: "aes-lib", want: AESStatus{"aes-lib", false},
			refused: true},
		{file: "template-made-before-module", cpu: x86, first: "aes-generic", has: "aes-aesni",
			want: AESStatus{"aes-aesni", true}},
		{file: "none", cpu: x86, first: "", want: AESStatus{"unknown", false}, refused: true},
	} {
		t.Run(c.file+" with "+c.has, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", "crypto", c.file))
			must(t, err)
			if got := aesDriver(string(text)); got != c.first {
				t.Errorf("the kernel's choice: %q, want %q", got, c.first)
			}
			probe := func(driver string) error {
				if driver == c.first || driver == c.has {
					return nil
				}
				return unix.ENOENT
			}
			got, err := chooseAES(string(text), c.cpu, false, probe)
			if got != c.want || c.refused != errors.Is(err, ErrTableAES) {
				t.Errorf("chosen %+v, %v; want %+v, refused %t", got, err, c.want, c.refused)
			}
			if c.refused && !strings.Contains(err.Error(), "encryption.allowTableAES") {
				t.Errorf("the refusal does not name the setting: %v", err)
			}
			if got, err := chooseAES(string(text), c.cpu, true, probe); got != c.want ||
				err != nil {
				t.Errorf("allowed: %+v, %v", got, err)
			}
		})
	}
}

// TestAESHere asks this kernel for its driver by name, and seals with it.
func TestAESHere(t *testing.T) {
	b := newSABed(t, "bpf")
	status := b.EngineStatus().AES
	t.Logf("%+v", status)
	if status.Driver == "" || status.ConstantTime != (b.writer.aes == "ecb("+status.Driver+")") {
		t.Errorf("status %+v, asked for by the name %q", status, b.writer.aes)
	}
	sa := testSA(true, 7, 1)
	aead, salt := reference(t, sa.Key), sa.Salt
	sa.VMGeneration = b.generation(t)
	must(t, b.InstallSA(sa))
	p := sealed{sa: firstSA, iv: 5, aad: make([]byte, 12), text: []byte("by its name")}
	if got := b.seal(t, "xdp",
		p); string(got) != string(aead.Seal(nil, nonce(salt, 5), p.text, p.aad)) {
		t.Errorf("sealed %x", got)
	}
}
