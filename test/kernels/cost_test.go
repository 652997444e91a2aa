package kernels

import (
	"os"
	"testing"
)

// TestModuleCost counts what the module takes for a packet of 1400 bytes. Only where a nanosecond is an instruction does it
// say anything: in `test/kernels/vm -i`.
func TestModuleCost(t *testing.T) {
	if os.Getenv("WEFT_ICOUNT") == "" {
		t.Skip("needs a VM that counts instructions: `make test-kernels` has one for each kernel")
	}
	loadModule(t)
	c := newCaller(t)
	if errno := c.create(t, "aead", "gcm(aes)/12", make([]byte, 32), 16); errno != 0 {
		t.Fatal(errno)
	}
	cost := func(seal, open bool) int64 {
		do := message(make([]byte, 12), make([]byte, 12), make([]byte, 1400))
		do.seal, do.open = seal, open
		c.tell(t, do)
		least := int64(1 << 62)
		for range 5 {
			_, took, err := c.Programs["crypt"].Benchmark(do.frame, 500, nil)
			must(t, err)
			if errno := c.answer(t); errno != 0 {
				t.Fatal(errno)
			}
			least = min(least, took.Nanoseconds())
		}
		return least
	}
	empty, seal, both := cost(false, false), cost(true, false), cost(true, true)
	t.Logf("instructions for 1400 bytes: seal %d, open %d, and %d of the program around them", seal-empty, both-seal, empty)
}
