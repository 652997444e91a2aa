package inet

import "testing"

// TestChecksum holds the sum to its own rule: over data that contains it, it is 0.
func TestChecksum(t *testing.T) {
	data := []byte{0x45, 0, 0, 0x1f, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	sum := Checksum(data)
	data[10], data[11] = byte(sum>>8), byte(sum)
	if Checksum(data) != 0 {
		t.Errorf("checksum of checked data is %#x", Checksum(data))
	}
	if got := Checksum([]byte{0xff}); got != 0x00ff {
		t.Errorf("odd length: %#x", got)
	}
}
