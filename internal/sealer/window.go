package sealer

// A window remembers which of an SA's latest numbers were used (RFC 6479): to open, against
// replays; to seal, so that no number is used twice whatever the hooks ask for. The worker's alone.
type window struct {
	top  uint64
	bits [windowWords]uint64
}

const (
	windowWords = 128
	windowSize  = (windowWords - 1) * 64 // the word that top is in is not full
)

// infer is the whole number that the lower half most likely belongs to (RFC 4303 appendix A2),
// given the highest that is known. There is nothing before the first round.
func infer(top uint64, low uint32) uint64 {
	topLow, high := uint32(top), uint32(top>>32)
	bottom := topLow - windowSize + 1
	switch {
	case topLow >= windowSize-1:
		if low < bottom {
			high++
		}
	case high > 0 && low >= bottom:
		high--
	}
	return uint64(high)<<32 | uint64(low)
}

// fresh says whether the number can still be used.
func (w *window) fresh(n uint64) bool {
	switch {
	case n == 0:
		return false
	case n > w.top:
		return true
	case w.top-n >= windowSize:
		return false
	}
	return w.bits[n>>6%windowWords]>>(n&63)&1 == 0
}

// use takes a fresh number.
func (w *window) use(n uint64) {
	if n > w.top {
		from, to := w.top>>6, n>>6
		for i := range min(to-from, windowWords) {
			w.bits[(to-i)%windowWords] = 0
		}
		w.top = n
	}
	w.bits[n>>6%windowWords] |= 1 << (n & 63)
}

// freshRange says whether all of count numbers can be used.
func (w *window) freshRange(first uint64, count int) bool {
	if first > w.top {
		return true
	}
	for n := range uint64(count) {
		if !w.fresh(first + n) {
			return false
		}
	}
	return true
}
