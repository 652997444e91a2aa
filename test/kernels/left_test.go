package kernels

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestNothingLeft is the last of a VM: the module is gone, which it cannot be while anybody holds a
// cipher, and the kernel complained of nothing.
func TestNothingLeft(t *testing.T) {
	if !inVM {
		t.Skip("needs a VM of its own: `make test-kernels` ends with this")
	}
	if moduleLoaded(t) {
		t.Error("the module is still loaded: something holds a cipher")
	}
	all, err := exec.Command("dmesg").Output()
	must(t, err)
	complaint := regexp.MustCompile(`BUG:|WARNING:|Oops|general protection|UBSAN|KASAN|Call Trace`)
	for line := range strings.Lines(string(all)) {
		if complaint.MatchString(line) {
			t.Errorf("the kernel's log: %s", line)
		}
	}
}
