// Package nldump reads lists of the kernel's that are whole.
package nldump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// attempts is how often a list is read that changes under the reader.
const attempts = 10

// Whole repeats a netlink dump that changed under the reader: what such a one returns is a part
// only.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for range attempts {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return nil, errors.New("netlink dump kept changing")
}
