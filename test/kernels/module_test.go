package kernels

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const moduleName = "weft_crypto"

// built returns the file that a variable names; the runner of the VMs builds it and sets that.
func built(t testing.TB, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		missing(t, "a kernel that kmod/ was built for (%s)", variable)
	}
	return path
}

func insertModule(path string) error {
	// What modprobe would do first, by the module's soft dependencies. Not every kernel has all of
	// them.
	for _, name := range []string{"gcm", "ctr", "aesni-intel", "ghash-clmulni-intel"} {
		_ = exec.Command("modprobe", "-q", name).Run()
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return unix.FinitModule(int(file.Fd()), "", 0)
}

// removeModule waits for the last context, which the kernel frees after a grace period.
func removeModule() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := unix.DeleteModule(moduleName, unix.O_NONBLOCK)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EBUSY) ||
			time.Now().After(deadline) {
			return err
		}
	}
}

// loadModule loads the module for the time of a test.
func loadModule(t testing.TB) {
	t.Helper()
	needRoot(t)
	if err := insertModule(built(t, "WEFT_KMOD")); err != nil {
		t.Fatalf("load the module: %v; the kernel says: %s", err, kernelLog(t))
	}
	t.Cleanup(func() {
		if err := removeModule(); err != nil {
			t.Errorf("unload the module: %v", err)
		}
	})
}

func moduleLoaded(t testing.TB) bool {
	t.Helper()
	all, err := os.ReadFile("/proc/modules")
	must(t, err)
	return strings.Contains("\n"+string(all), "\n"+moduleName+" ")
}

// kernelLog is what the kernel has said of the module.
func kernelLog(t testing.TB) string {
	t.Helper()
	all, err := exec.Command("dmesg").Output()
	must(t, err)
	var lines []string
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, moduleName) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// params is the kernel's struct bpf_crypto_params, and behind it what the program answers.
type params struct {
	Type     [14]byte
	_        [2]byte
	Algo     [128]byte
	Key      [256]byte
	KeyLen   uint32
	AuthSize uint32
	Result   int32
}

// area is a part of the frame.
type area struct{ From, To uint32 }

// caller calls the module through bpf_crypto.
type caller struct {
	*ebpf.Collection
}

func newCaller(t testing.TB) *caller {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(built(t, "WEFT_MODULE_OBJECT"))
	must(t, err)
	collection, err := ebpf.NewCollection(spec)
	must(t, err)
	c := &caller{collection}
	t.Cleanup(func() {
		c.create(t, "", "", nil, 0)
		c.Close()
	})
	return c
}

// create makes the cipher for the calls that follow, and returns what the kernel says.
func (c *caller) create(t testing.TB, kind, algo string, key []byte, tag int) unix.Errno {
	t.Helper()
	p := params{KeyLen: uint32(len(key)), AuthSize: uint32(tag)}
	copy(p.Type[:], kind)
	copy(p.Algo[:], algo)
	copy(p.Key[:], key)
	buffer := bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&p)), unsafe.Sizeof(p)))
	out := make([]byte, len(buffer))
	code, err := c.Programs["create"].Run(&ebpf.RunOptions{Context: buffer, ContextOut: out})
	must(t, err)
	if code != 0 {
		t.Fatalf("create: %d", code)
	}
	return unix.Errno(-(*params)(unsafe.Pointer(&out[0])).Result)
}

// call is one call of the module.
type call struct {
	frame         []byte
	siv, src, dst area
	seal, open    bool
}

// tell tells the program what the next runs do.
func (c *caller) tell(t testing.TB, do call) {
	t.Helper()
	flag := map[bool]uint32{true: 1}
	for name, value := range map[string]any{"siv": do.siv, "src": do.src, "dst": do.dst,
		"seal": flag[do.seal], "open": flag[do.open]} {
		must(t, c.Variables[name].Set(value))
	}
}

// answer is what the module answered to the last run.
func (c *caller) answer(t testing.TB) unix.Errno {
	t.Helper()
	var result int32
	must(t, c.Variables["result"].Get(&result))
	return unix.Errno(-result)
}

// run returns the frame afterwards, and what the module answered.
func (c *caller) run(t testing.TB, do call) ([]byte, unix.Errno) {
	t.Helper()
	c.tell(t, do)
	options := &ebpf.RunOptions{Data: do.frame, DataOut: make([]byte, len(do.frame)+256)}
	code, err := c.Programs["crypt"].Run(options)
	must(t, err)
	if code != 2 {
		t.Fatalf("%+v: the program could not run: %d", do, code)
	}
	return options.DataOut, c.answer(t)
}

// message is a call in place: Ethernet header, nonce and associated data, text, tag.
func message(nonce, aad, text []byte) call {
	frame := append(make([]byte, ethLen), nonce...)
	frame = append(frame, aad...)
	begin := uint32(len(frame))
	frame = append(append(frame, text...), make([]byte, 16)...)
	all := area{begin, uint32(len(frame))}
	return call{frame: frame, siv: area{ethLen, begin}, src: all, dst: all}
}

func TestModuleRefusesWrongAnswers(t *testing.T) {
	needRoot(t)
	path := built(t, "WEFT_KMOD_FAULTY")
	if err := insertModule(path); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("a module whose self-test fails: %v, want %v", err, unix.EBADMSG)
	}
	if moduleLoaded(t) {
		t.Error("it is loaded")
	}
	if said := kernelLog(t); !strings.Contains(said, "self-test") {
		t.Errorf("the kernel log does not say why: %s", said)
	}
}

func TestModuleAgainstGo(t *testing.T) {
	loadModule(t)
	c := newCaller(t)
	random := rand.New(rand.NewChaCha8([32]byte{3}))
	bytesOf := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	for _, keyLen := range []int{16, 24, 32} {
		key := bytesOf(keyLen)
		block, err := aes.NewCipher(key)
		must(t, err)
		aead, err := cipher.NewGCM(block)
		must(t, err)
		if errno := c.create(t, "aead", "gcm(aes)/12", key, 16); errno != 0 {
			t.Fatalf("key of %d bytes: %v", keyLen, errno)
		}
		for length := 0; length <= 1500; length++ {
			nonce, aad, text := bytesOf(12), bytesOf(12), bytesOf(length)
			do := message(nonce, aad, text)
			do.seal = true
			got, errno := c.run(t, do)
			if want := aead.Seal(nil, nonce, text, aad); errno != 0 ||
				!bytes.Equal(got[do.src.From:], want) {
				t.Fatalf("key of %d bytes: seal %d bytes: %v, got %x, want %x", keyLen, length,
					errno, got[do.src.From:], want)
			}
			do.frame, do.seal, do.open = got, false, true
			opened, errno := c.run(t, do)
			if errno != 0 || !bytes.Equal(opened[do.src.From:int(do.src.From)+length], text) {
				t.Fatalf("key of %d bytes: open %d bytes: %v", keyLen, length, errno)
			}
			do.frame = bytes.Clone(got)
			do.frame[ethLen+random.IntN(len(got)-ethLen)] ^= 1 << random.IntN(8)
			if _, errno = c.run(t, do); errno != unix.EBADMSG {
				t.Fatalf("key of %d bytes: open a forgery of %d bytes: %v, want %v", keyLen, length,
					errno, unix.EBADMSG)
			}
		}
	}
}

func TestModuleRefusesBadKeys(t *testing.T) {
	loadModule(t)
	c := newCaller(t)
	key := make([]byte, 33)
	for name, bad := range map[string]struct {
		kind, algo  string
		keyLen, tag int
		want        unix.Errno
	}{
		"another type":             {"aeaD", "gcm(aes)/12", 32, 16, unix.ENOENT},
		"another algorithm":        {"aead", "ccm(aes)/12", 32, 16, unix.EOPNOTSUPP},
		"no length":                {"aead", "gcm(aes)", 32, 16, unix.EOPNOTSUPP},
		"no number":                {"aead", "gcm(aes)/", 32, 16, unix.EOPNOTSUPP},
		"more behind the number":   {"aead", "gcm(aes)/12x", 32, 16, unix.EOPNOTSUPP},
		"negative":                 {"aead", "gcm(aes)/-1", 32, 16, unix.EOPNOTSUPP},
		"too much associated data": {"aead", "gcm(aes)/33", 32, 16, unix.EOPNOTSUPP},
		"key too long":             {"aead", "gcm(aes)/12", 33, 16, unix.EINVAL},
		"key too short":            {"aead", "gcm(aes)/12", 15, 16, unix.EINVAL},
		"no key":                   {"aead", "gcm(aes)/12", 0, 16, unix.EINVAL},
		"no tag":                   {"aead", "gcm(aes)/12", 32, 0, unix.EOPNOTSUPP},
		"short tag":                {"aead", "gcm(aes)/12", 32, 12, unix.EINVAL},
		"long tag":                 {"aead", "gcm(aes)/12", 32, 17, unix.EINVAL},
	} {
		if errno := c.create(t, bad.kind, bad.algo, key[:bad.keyLen], bad.tag); errno != bad.want {
			t.Errorf("%s: %v, want %v", name, errno, bad.want)
		}
	}
	if errno := c.create(t, "aead", "gcm(aes)/12", key[:32], 16); errno != 0 {
		t.Errorf("nothing wrong: %v", errno)
	}
}

func TestModuleRefusesBadLengths(t *testing.T) {
	loadModule(t)
	c := newCaller(t)
	if errno := c.create(t, "aead", "gcm(aes)/12", make([]byte, 32), 16); errno != 0 {
		t.Fatal(errno)
	}
	good := message(make([]byte, 12), make([]byte, 12), make([]byte, 100))
	from, to := good.src.From, good.src.To
	for name, change := range map[string]func(*call){
		"short nonce and data":              func(c *call) { c.siv.To-- },
		"long nonce and data":               func(c *call) { c.siv.To++ },
		"no room for a tag":                 func(c *call) { c.src.To, c.dst.To = from+15, from+15 },
		"target shorter than source":        func(c *call) { c.dst.To = to - 1 },
		"target a little behind the source": func(c *call) { c.src.To, c.dst = to-4, area{from + 4, to} },
		"target a little before the source": func(c *call) { c.dst, c.src.From = area{from, to - 4}, from+4 },
	} {
		for _, seal := range []bool{true, false} {
			bad := good
			bad.seal, bad.open = seal, !seal
			change(&bad)
			got, errno := c.run(t, bad)
			if errno != unix.EINVAL || !bytes.Equal(got, good.frame) {
				t.Errorf("%s, seal %v: %v, want %v and nothing changed", name, seal, errno,
					unix.EINVAL)
			}
		}
	}
	apart := good
	apart.src, apart.dst, apart.seal = area{from, from + 50}, area{from + 50, from + 100}, true
	inPlace := apart
	inPlace.dst = apart.src
	one, errno1 := c.run(t, apart)
	two, errno2 := c.run(t, inPlace)
	if errno1 != 0 || errno2 != 0 || !bytes.Equal(one[from+50:from+100], two[from:from+50]) {
		t.Errorf("apart and in place: %v, %v: want the same bytes", errno1, errno2)
	}
}

// TestModuleIsHeld: whoever removes the module must not pull a cipher from under a program.
func TestModuleIsHeld(t *testing.T) {
	loadModule(t)
	c := newCaller(t)
	key := make([]byte, 32)
	for i := range key {
		key[i] = 0xd0 + byte(i)
	}
	if errno := c.create(t, "aead", "gcm(aes)/12", key, 16); errno != 0 {
		t.Fatal(errno)
	}
	if err := unix.DeleteModule(moduleName, unix.O_NONBLOCK); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("remove the module while there is a cipher: %v, want %v", err, unix.EAGAIN)
	}
	driver, err := os.ReadFile("/sys/module/" + moduleName + "/parameters/driver")
	if err != nil || len(bytes.TrimSpace(driver)) == 0 {
		t.Errorf("driver: %q, %v", driver, err)
	}
	t.Logf("AES-GCM by %s", bytes.TrimSpace(driver))
	if said := kernelLog(t); strings.Contains(said, hex.EncodeToString(key[:4])) ||
		!strings.Contains(said, "self-test passed") {
		t.Errorf("the kernel log should say that the self-test passed, and nothing of keys: %s",
			said)
	}
	c.create(t, "", "", nil, 0)
	must(t, removeModule())
	if errno := c.create(t, "aead", "gcm(aes)/12", key, 16); errno != unix.ENOENT {
		t.Errorf("without the module: %v, want %v", errno, unix.ENOENT)
	}
	must(t, insertModule(built(t, "WEFT_KMOD"))) // for the cleanup
}

// TestModuleOnEveryCPU: on kernels without AES-GCM in the crypto library each CPU has one place to
// work in.
func TestModuleOnEveryCPU(t *testing.T) {
	loadModule(t)
	c := newCaller(t)
	if errno := c.create(t, "aead", "gcm(aes)/12", make([]byte, 32), 16); errno != 0 {
		t.Fatal(errno)
	}
	do := message(make([]byte, 12), make([]byte, 12), make([]byte, 1400))
	do.seal, do.open = true, true
	c.tell(t, do)
	done := make(chan error)
	const workers = 4
	for range workers {
		go func() {
			out := make([]byte, len(do.frame)+256)
			options := &ebpf.RunOptions{Data: do.frame, DataOut: out, Repeat: 200}
			_, err := c.Programs["crypt"].Run(options)
			if err == nil &&
				!bytes.Equal(options.DataOut[do.src.From:do.src.To-16], make([]byte, 1400)) {
				err = errors.New("sealed and opened again 200 times, the text is another")
			}
			done <- err
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
