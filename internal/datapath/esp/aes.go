package esp

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/datapath/bpf"
)

const (
	procCrypto = "/proc/crypto"
	procCPU    = "/proc/cpuinfo"
)

// ErrTableAES says that the kernel's AES for engine bpf looks things up in tables by secret bytes,
// so that its timing leaks the key to whoever shares the CPU's caches.
var ErrTableAES = errors.New("the kernel has no AES for it whose time does not depend on the key")

// algorithm is one entry of /proc/crypto.
type algorithm struct {
	name, driver, kind string
	priority           int
	usable             bool
}

// parseCrypto reads /proc/crypto: paragraphs of "field : value".
func parseCrypto(text string) []algorithm {
	var out []algorithm
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		a := algorithm{usable: true}
		for line := range strings.SplitSeq(paragraph, "\n") {
			field, value, _ := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch strings.TrimSpace(field) {
			case "name":
				a.name = value
			case "driver":
				a.driver = value
			case "type":
				a.kind = value
			case "priority":
				a.priority, _ = strconv.Atoi(value)
			case "selftest":
				a.usable = a.usable && value == "passed"
			case "internal":
				a.usable = a.usable && value == "no"
			}
		}
		if a.name != "" && a.usable {
			out = append(out, a)
		}
	}
	return out
}

// best is the driver of the highest priority, as the kernel chooses: "" for none.
func best(list []algorithm, name, kind string) string {
	driver, priority := "", -1
	for _, a := range list {
		if a.name == name && a.kind == kind && a.priority > priority {
			driver, priority = a.driver, a.priority
		}
	}
	return driver
}

// aesDriver is the AES cipher that stands behind ecb(aes) as engine bpf asks for it: inside the
// template, if one was made already, else the cipher that the template would take.
func aesDriver(crypto string) string {
	list := parseCrypto(crypto)
	if driver := best(list, "ecb(aes)", "lskcipher"); driver != "" {
		return strings.TrimSuffix(strings.TrimPrefix(driver, "ecb("), ")")
	}
	return best(list, "aes", "cipher")
}

// The drivers that take the same time whatever key and data are: by instructions of the CPU, or by
// computing instead of looking up. In the order in which they are tried if the kernel's first
// choice is another.
var constantTimeAES = []string{"aes-aesni", "aes-ce", "aes-s390", "p8_aes", "aes-riscv64-zvkned",
	"aes-fixed-time"}

// libraryAES is the kernel's library as a cipher, since Linux 7: the CPU's instructions where there
// are such, else tables.
const libraryAES = "aes-lib"

// constantTime says whether a driver's time does not depend on secrets. One that nobody knows does
// not count.
func constantTime(driver, cpuinfo string) bool {
	return slices.Contains(constantTimeAES, driver) || driver == libraryAES && hasAES(cpuinfo)
}

// hasAES says whether the CPU has instructions for AES: "aes" among x86's flags or arm64's
// features.
func hasAES(cpuinfo string) bool {
	for line := range strings.SplitSeq(cpuinfo, "\n") {
		field, value, _ := strings.Cut(line, ":")
		if field = strings.TrimSpace(field); field == "flags" || field == "Features" {
			return slices.Contains(strings.Fields(value), "aes")
		}
	}
	return false
}

// AESStatus says which AES engine bpf runs on.
type AESStatus struct {
	// Driver is the kernel's name for it.
	Driver string `json:"driver"`
	// ConstantTime: its timing leaks nothing about keys.
	ConstantTime bool `json:"constantTime"`
}

// chooseAES finds the driver: the kernel's own choice if its time is constant, else the first of
// the others that the kernel has. SAs ask for it by name, so that what was judged is what runs.
// probe says whether the kernel has a cipher.
func chooseAES(crypto, cpuinfo string, allowTables bool,
	probe func(driver string) error) (AESStatus, error) {
	first := aesDriver(crypto)
	if first != "" && constantTime(first, cpuinfo) && probe(first) == nil {
		return AESStatus{first, true}, nil
	}
	for _, driver := range constantTimeAES {
		if probe(driver) == nil {
			return AESStatus{driver, true}, nil
		}
	}
	if first == "" {
		first = "unknown"
	}
	if !allowTables {
		return AESStatus{first,
				false},
			fmt.Errorf("%w: it has %s: load a module that has one (aesni-intel, aes-ce-cipher, aes_ti), or weft_crypto for engine kmod, or set encryption.allowTableAES", ErrTableAES, first)
	}
	return AESStatus{first, false}, nil
}

// readAES looks at this machine.
func (w *writer) readAES(allowTables bool) (AESStatus, error) {
	crypto, err := os.ReadFile(procCrypto)
	if err != nil {
		return AESStatus{}, fmt.Errorf("find the kernel's AES: %w", err)
	}
	cpuinfo, err := os.ReadFile(procCPU)
	if err != nil {
		return AESStatus{}, fmt.Errorf("find the kernel's AES: %w", err)
	}
	return chooseAES(string(crypto), string(cpuinfo), allowTables, func(driver string) error {
		w.request.cipher(bpf.EngineBpf)
		w.request.named("ecb(" + driver + ")")
		return w.run("weft_sa_probe")
	})
}
