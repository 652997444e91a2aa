package tsc

// count reads the counter.
func count() uint64
