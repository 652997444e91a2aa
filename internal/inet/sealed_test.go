package inet

import "testing"

func TestSealedMTU(t *testing.T) {
	for _, tt := range []struct{ mtu, v4, v6 int }{{1500, 1438, 1418}, {1501, 1438, 1418},
		{1504, 1442, 1422}, {1280, 1218, 1198}, {9000, 8938, 8918}, {65535, 9206, 9206}} {
		if v4, v6 := SealedMTU(tt.mtu, false), SealedMTU(tt.mtu, true); v4 != tt.v4 || v6 != tt.v6 {
			t.Errorf("%d: %d %d", tt.mtu, v4, v6)
		}
	}
	// What fits is the largest that does: text is packet, padding and two bytes, a multiple of
	// four.
	for mtu := 600; mtu < 3000; mtu++ {
		text := func(inner int) int { return (inner + 2 + 3) &^ 3 }
		if in := SealedMTU(mtu, false); text(in)+sealOverIPv4 > mtu ||
			text(in+1)+sealOverIPv4 <= mtu {
			t.Fatalf("%d: %d", mtu, in)
		}
	}
}
