package encryptcheck

import (
	"bytes"
	"crypto/rand"
	"fmt"
)

// NewMarker makes bytes that nobody else sends: printable, so that a dump shows them to people.
func NewMarker() []byte {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return fmt.Appendf(nil, "weft-marker-%x.", random)
}

// Fill repeats a marker over size bytes: wherever a stream is cut into packets, each of at
// least twice the marker's length holds it whole.
func Fill(marker []byte, size int) []byte {
	return bytes.Repeat(marker, size/len(marker)+1)[:size]
}
