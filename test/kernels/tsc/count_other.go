//go:build !amd64

package tsc

func count() uint64 { return 0 }
