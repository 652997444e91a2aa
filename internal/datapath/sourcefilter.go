package datapath

import (
	"fmt"
	stdmaps "maps"
	"net/netip"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// SourceFilter drops what reaches a listening TCP socket from any address but the allowed ones: in
// the kernel, without an answer, so that a flood costs little more than its packets do. Connections
// that stand are none of its business. It needs no Datapath. Its methods may be called from several
// goroutines.
type SourceFilter struct {
	collection *ebpf.Collection
	mu         sync.Mutex
	allowed    map[netip.Addr]bool
}

// OpenSourceFilter loads the program. Until Allow is called, nobody is allowed.
func OpenSourceFilter() (*SourceFilter, error) {
	collection, err := bpf.Load(&bpf.Maps{}, "source_filter", "weft_source_filter", nil, false)
	if err != nil {
		return nil, err
	}
	return &SourceFilter{collection: collection}, nil
}

// Attach puts the filter on a socket. Best before it listens: then nothing comes past it.
func (f *SourceFilter) Attach(fd uintptr) error {
	program := f.collection.Programs["weft_source_filter"]
	return os.NewSyscallError("setsockopt SO_ATTACH_BPF",
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_BPF, program.FD()))
}

// Allow replaces the addresses that are let in. After an error some of them may be missing, none
// too many unless it could not remove one; the next call tries again.
func (f *SourceFilter) Allow(addrs map[netip.Addr]bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.allowed != nil && stdmaps.Equal(f.allowed, addrs) {
		return nil
	}
	want := map[bpf.Addr]bool{}
	for a, is := range addrs {
		if is {
			want[bpf.ToAddr(a)] = true
		}
	}
	f.allowed = nil
	if _, err := bpf.SyncSet(f.collection.Maps["weft_allowed"], want); err != nil {
		return fmt.Errorf("set the addresses that may open connections: %w", err)
	}
	f.allowed = stdmaps.Clone(addrs)
	return nil
}

// Refused is how many packets were dropped, and where the last came from.
func (f *SourceFilter) Refused() (packets uint64, last netip.Addr, err error) {
	perCPU := make([]bpf.SourceFilter, ebpf.MustPossibleCPU())
	if err := f.collection.Maps["weft_refused"].Lookup(uint32(0), &perCPU); err != nil {
		return 0, last, fmt.Errorf("read what the source filter dropped: %w", err)
	}
	var at uint64
	for _, c := range perCPU {
		packets += c.Packets
		if c.LastNs > at {
			at, last = c.LastNs, bpf.FromAddr(c.Last)
		}
	}
	return packets, last, nil
}

// Close gives the filter's maps and program back. Sockets that have it keep it.
func (f *SourceFilter) Close() error {
	f.collection.Close()
	return nil
}
