package tsc

import (
	"runtime"
	"testing"
)

// TestKHz: two measurements agree better than the kernel asks of a frequency that it is given,
// which is one in a hundred.
func TestKHz(t *testing.T) {
	one, other := KHz(), KHz()
	if (one == 0) != (runtime.GOARCH != "amd64") {
		t.Fatalf("%d kHz on %s", one, runtime.GOARCH)
	}
	if one > other {
		one, other = other, one
	}
	if other-one > one/1000 {
		t.Errorf("%d kHz and %d kHz", one, other)
	}
	t.Logf("%d kHz", one)
}
