package bpf

import "fmt"

// Names are those of an enum's values, which a program of another version may have more of.
type Names []string

// Of is a value's name.
func (n Names) Of(i uint8) string {
	if int(i) < len(n) {
		return n[i]
	}
	return fmt.Sprintf("unknown_%d", i)
}
