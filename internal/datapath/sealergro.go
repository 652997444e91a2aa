package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// sealerGRO has the kernel merge what other nodes' sealers send to this node's, before TC sees it.
// It goes with the agent; without it packets come one by one.
type sealerGRO struct {
	collection *ebpf.Collection
	link       link.Link
	sockets    []int
}

// openSealerGRO attaches the program to the thread's network namespace.
func openSealerGRO(port uint16, addrs []netip.Addr) (*sealerGRO, error) {
	constants := map[string]any{"weft_port": uint32(port)}
	for _, a := range addrs {
		if a.Is4() {
			constants["weft_ip4"] = bpf.BE32(a)
		} else {
			constants["weft_ip6"] = bpf.ToAddr(a)
		}
	}
	g := &sealerGRO{}
	var err error
	if g.collection, err = bpf.Load(&bpf.Maps{}, "sealer_gro", "weft_sealer_gro", constants,
		false); err != nil {
		return nil, err
	}
	if err := errors.Join(g.enter(0, unix.AF_INET), g.enter(1, unix.AF_INET6),
		g.attach()); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// enter makes the socket of a family that asks for merging. It is bound, since only such can be
// looked up, to an address that nobody on a wire reaches.
func (g *sealerGRO) enter(key uint32, family int) error {
	s, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	g.sockets = append(g.sockets, s)
	var local unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if family == unix.AF_INET6 {
		local = &unix.SockaddrInet6{Addr: [16]byte{15: 1}}
	}
	if err := unix.SetsockoptInt(s, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
		return os.NewSyscallError("setsockopt UDP_GRO", err)
	}
	err = unix.Bind(s, local)
	if family == unix.AF_INET6 && errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil // IPv6 is off here
	}
	if err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := g.collection.Maps["weft_mergers"].Put(key, uint64(s)); err != nil {
		return fmt.Errorf("enter a socket that asks for merging: %w", err)
	}
	return nil
}

func (g *sealerGRO) attach() error {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer ns.Close()
	if g.link, err = link.AttachNetNs(int(ns.Fd()),
		g.collection.Programs["weft_sealer_gro"]); err != nil {
		return fmt.Errorf("attach sealer_gro: %w", err)
	}
	return nil
}

// Close ends the merging.
func (g *sealerGRO) Close() error {
	if g == nil {
		return nil
	}
	var failed error
	if g.link != nil {
		failed = g.link.Close()
	}
	for _, s := range g.sockets {
		failed = errors.Join(failed, unix.Close(s))
	}
	g.collection.Close()
	return failed
}
