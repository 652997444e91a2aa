package wirefuzz

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// packetSocket opens a packet socket on an interface of a namespace.
func packetSocket(t *testing.T, ns, ifName string, receive bool) (fd int) {
	t.Helper()
	err := netns.Do(ns, func() error {
		iface, err := net.InterfaceByName(ifName)
		if err != nil {
			return err
		}
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if !receive {
			all = 0
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			int(all)); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index})
	})
	if err != nil {
		t.Fatalf("packet socket on %s: %v", ifName, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// cable puts frames on the cable to a node: as they are, with a tag that the device keeps beside
// the frame, or as one that stands for many.
type cable struct{ plain, merged int }

func newCable(t *testing.T, ns, port string) *cable {
	t.Helper()
	c := &cable{plain: packetSocket(t, ns, port, false), merged: packetSocket(t, ns, port, false)}
	if err := unix.SetsockoptInt(c.merged, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		t.Fatal(err)
	}
	tagger(t, ns, port)
	return c
}

func (c *cable) send(p *part) error {
	if p.merge != nil {
		return unix.Send(c.merged, append(bytes.Clone(p.merge), p.data...), 0)
	}
	mark := 0
	if p.tag != nil {
		mark = tagMark | int(*p.tag)
		if p.service {
			mark |= serviceMark
		}
	}
	if err := unix.SetsockoptInt(c.plain, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
		return err
	}
	return unix.Send(c.plain, p.data, 0)
}

const (
	tagMark     = 0x57 << 24
	serviceMark = 1 << 16
)

// tagger has a port give frames with our mark a VLAN tag as a NIC does, beside the frame: a veth
// carries it to its other end like that. (VLAN interfaces do the same, but not every kernel has
// them.)
func tagger(t *testing.T, ns, port string) {
	t.Helper()
	attachEgress(t, ns, port, asm.Instructions{
		asm.LoadMem(asm.R3, asm.R1, 8, asm.Word), // mark
		asm.Mov.Reg(asm.R0, asm.R3),
		asm.RSh.Imm(asm.R0, 24),
		asm.JNE.Imm(asm.R0, 0x57, "out"),
		asm.Mov.Imm(asm.R2, int32(network(0x8100))),
		asm.Mov.Reg(asm.R0, asm.R3),
		asm.And.Imm(asm.R0, serviceMark),
		asm.JEq.Imm(asm.R0, 0, "push"),
		asm.Mov.Imm(asm.R2, int32(network(0x88a8))),
		asm.And.Imm(asm.R3, 0xffff).WithSymbol("push"),
		asm.FnSkbVlanPush.Call(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	})
}

func network(v uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v))
}

// arrival is a packet with one of our markers that a pod's interface or a host's stack took.
type arrival struct {
	id       uint32
	who      string
	host     bool
	src, dst netip.Addr // invalid where the socket does not say
	quotes   bool       // an ICMPv6 error of a host to itself
}

// tap collects arrivals: of a pod what its interface hands up, of a host what its raw sockets get,
// which is what the stack has accepted as its own.
type tap struct {
	magic [4]byte
	mu    sync.Mutex
	all   map[uint32][]arrival
	done  chan struct{}
	wait  sync.WaitGroup
}

func newTap(t *testing.T, l *lab.Lab) *tap {
	t.Helper()
	tp := &tap{all: map[uint32][]arrival{}, done: make(chan struct{})}
	binary.BigEndian.PutUint32(tp.magic[:], 0xfa110000^uint32(time.Now().UnixNano()))
	for _, p := range l.Pods() {
		tp.listen(packetSocket(t, p.NetNS, p.IfName, true), p.Name, false, 14)
	}
	for _, n := range agents(l) {
		for _, proto := range []int{unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP,
			unix.IPPROTO_SCTP, 253} {
			tp.listen(rawSocket(t, n, unix.AF_INET, proto), n.Name, true, 0)
		}
		for _, proto := range []int{unix.IPPROTO_ICMPV6, unix.IPPROTO_TCP, unix.IPPROTO_UDP,
			unix.IPPROTO_SCTP, 253} {
			tp.listen(rawSocket(t, n, unix.AF_INET6, proto), n.Name, true, -1)
		}
	}
	// Cleanups run last in, first out: the readers end before their sockets.
	t.Cleanup(func() { close(tp.done); tp.wait.Wait() })
	return tp
}

func rawSocket(t *testing.T, n *lab.Node, family, proto int) (fd int) {
	t.Helper()
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// listen reads a socket until the tap is closed. at is where the IP header is, negative if there is
// none.
func (tp *tap) listen(fd int, who string, host bool, at int) {
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	proto, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	icmp6 := at < 0 && proto == unix.IPPROTO_ICMPV6
	tp.wait.Go(func() {
		buf := make([]byte, 1<<17)
		for {
			select {
			case <-tp.done:
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				continue
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			tp.take(buf[:n], arrival{who: who, host: host, quotes: icmp6 && buf[0] < 128}, at)
		}
	})
}

// take notes each marker of a packet; one that was merged has many.
func (tp *tap) take(b []byte, a arrival, at int) {
	a.src, a.dst = ends(b, at)
	rest := b
	for i := bytes.Index(rest, tp.magic[:]); i >= 0 &&
		i+8 <= len(rest); i = bytes.Index(rest, tp.magic[:]) {
		word := binary.BigEndian.Uint32(rest[i+4:])
		rest = rest[i+8:]
		if a.id = word >> 8; word != checked(a.id) {
			continue // another's, with a bit flipped
		}
		tp.mu.Lock()
		tp.all[a.id] = append(tp.all[a.id], a)
		tp.mu.Unlock()
	}
}

// ends reads addresses from the IP header at at.
func ends(b []byte, at int) (src, dst netip.Addr) {
	if at < 0 || len(b) < at+20 {
		return
	}
	b = b[at:]
	if b[0]>>4 == 4 {
		src, _ = netip.AddrFromSlice(b[12:16])
		dst, _ = netip.AddrFromSlice(b[16:20])
	} else if len(b) >= 40 {
		src, _ = netip.AddrFromSlice(b[8:24])
		dst, _ = netip.AddrFromSlice(b[24:40])
	}
	return
}

// checked is the second half of a marker: 24 bits of number, and 8 that tell it from one that was
// damaged.
func checked(id uint32) uint32 { return id<<8 | id*0x9e3779b1>>24 }

func (tp *tap) marker(id uint32) []byte {
	return binary.BigEndian.AppendUint32(bytes.Clone(tp.magic[:]), checked(id))
}

// of gives what has arrived of a marker.
func (tp *tap) of(id uint32) []arrival {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	return append([]arrival(nil), tp.all[id]...)
}

// at says whether somebody has got the marker.
func (tp *tap) at(id uint32, who string) bool {
	for _, a := range tp.of(id) {
		if a.who == who && !a.host {
			return true
		}
	}
	return false
}
