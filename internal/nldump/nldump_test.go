package nldump

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestWhole(t *testing.T) {
	other := errors.New("no such thing")
	for _, tc := range []struct {
		name              string
		interrupted       int
		last              error
		want, calls       int
		fails, passedDown bool
	}{
		{"whole at once", 0, nil, 2, 1, false, false},
		{"interrupted twice", 2, nil, 2, 3, false, false},
		{"never whole", attempts, nil, 0, attempts, true, false},
		{"another error", 1, other, 2, 2, true, true},
	} {
		calls := 0
		got, err := Whole(func() ([]int, error) {
			if calls++; calls <= tc.interrupted {
				return []int{1}, fmt.Errorf("dump: %w", netlink.ErrDumpInterrupted)
			}
			return []int{1, 2}, tc.last
		})
		if len(got) != tc.want || calls != tc.calls || (err != nil) != tc.fails ||
			errors.Is(err, other) != tc.passedDown {
			t.Errorf("%s: %v, %v after %d calls", tc.name, got, err, calls)
		}
	}
}
