package load

import "testing"

func TestQuantile(t *testing.T) {
	hundred := make([]uint32, 100)
	for i := range hundred {
		hundred[i] = uint32(i + 1)
	}
	cases := []struct {
		name   string
		sorted []uint32
		q      float64
		want   uint32
	}{
		{"empty", nil, 0.5, 0},
		{"one", []uint32{7}, 0.99, 7},
		{"median of 100", hundred, 0.5, 50},
		{"p99 of 100", hundred, 0.99, 99},
		{"maximum", hundred, 1, 100},
		{"minimum", hundred, 0, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := Quantile(c.sorted, c.q); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestParseBusy(t *testing.T) {
	busy, err := parseBusy("cpu  100 7 50 9000 20 3 4 5 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	if err != nil || busy != 162*clockTick {
		t.Errorf("busy %s, %v", busy, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "cpu  a b c d e f g h i j"} {
		if _, err := parseBusy(bad); err == nil {
			t.Errorf("parseBusy(%q) has no error", bad)
		}
	}
}
