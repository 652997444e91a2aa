package kernels

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/inet"
)

// stream is a flow of large packets, which whoever sends them leaves to its device to cut.
type stream struct {
	name    string
	udp     bool
	size    int // of each packet's payload; 0: as much as the tunnel takes
	flags   uint8
	tos     uint8
	options int // bytes of TCP's options
}

// TCP's flags and IP's ECN bits (RFC 3168) that inet has no names for.
const (
	flagECE, flagCWR = 0x40, 0x80
	ect0, ect1       = 2, 1
)

var streams = []stream{
	{name: "TCP", flags: inet.ACK | inet.PSH},
	{name: "TCP, odd MSS, options", size: 1001, flags: inet.ACK, options: 12},
	{name: "TCP, small MSS, all options", size: 17, flags: inet.ACK | inet.PSH, options: 40},
	{name: "TCP, ECN, CWR", flags: inet.ACK | inet.PSH | flagCWR | flagECE, tos: ect0, options: 12},
	{name: "TCP, ECN, FIN", size: 999, flags: inet.ACK | inet.FIN, tos: 0xb8 | ect1},
	{name: "UDP", udp: true, tos: 0xb8},
	{name: "UDP, odd size", udp: true, size: 333},
}

// flow is a stream between two addresses.
type flow struct {
	stream
	from, to netip.Addr
	port     uint16
	seq      uint32
	id       uint16
}

func (f *flow) ipLen() int {
	if f.from.Is4() {
		return inet.IPv4Len
	}
	return inet.IPv6Len
}

func (f *flow) transportLen() int {
	if f.udp {
		return inet.UDPLen
	}
	return inet.TCPLen + f.options
}

// optionBytes are TCP's options: timestamps (RFC 7323), and no-operations.
func (f *flow) optionBytes() []byte {
	b := make([]byte, f.options)
	for i := range b {
		b[i] = 1
	}
	if len(b) >= 12 {
		copy(b, []byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8})
	}
	return b
}

// packet is the flow's next one, with that many bytes of payload and all checksums.
func (f *flow) packet(length int, flags uint8) []byte {
	data := make([]byte, length)
	for i := range data {
		data[i] = byte(i*7 + i>>8 + int(f.id))
	}
	p := inet.Packet{Src: f.from, Dst: f.to, TTL: inet.DefaultTTL, TOS: f.tos,
		Protocol: unix.IPPROTO_UDP}
	if f.from.Is4() {
		p.Fragment, p.ID = inet.DontFragment, f.id
	}
	if f.udp {
		p.Payload = inet.UDP(f.port, 9, data)
	} else {
		p.Protocol = unix.IPPROTO_TCP
		header := inet.TCP(inet.TCPHeader{SrcPort: f.port, DstPort: 9, Seq: f.seq, Flags: flags,
			Window: 500}, f.optionBytes())
		header[12] = byte(len(header)) / 4 << 4
		binary.BigEndian.PutUint32(header[8:], 77)
		p.Payload = append(header, data...)
		f.seq += uint32(length)
	}
	inet.SetTransportChecksum(p.Src, p.Dst, p.Protocol, p.Payload)
	f.id += 100
	return p.IP()
}

// large says of a packet, by a struct virtio_net_hdr (linux/virtio_net.h) before its frame, that
// the device is to cut it into segments of that much payload and to compute their checksums.
func (f *flow) large(frame []byte, size int) []byte {
	frame = bytes.Clone(frame)
	kind, field := byte(unix.VIRTIO_NET_HDR_GSO_TCPV4), 16
	switch {
	case f.udp:
		kind, field = unix.VIRTIO_NET_HDR_GSO_UDP_L4, 6
	case f.from.Is6():
		kind = unix.VIRTIO_NET_HDR_GSO_TCPV6
	}
	if !f.udp && f.flags&flagCWR != 0 {
		kind |= unix.VIRTIO_NET_HDR_GSO_ECN
	}
	start := ethLen + f.ipLen()
	protocol := byte(unix.IPPROTO_TCP)
	if f.udp {
		protocol = unix.IPPROTO_UDP
	}
	// What is left in the field is the pseudo-header's sum.
	pseudo := append(append(f.from.AsSlice(), f.to.AsSlice()...), 0, protocol)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(frame)-start))
	binary.BigEndian.PutUint16(frame[start+field:], ^inet.Checksum(pseudo))
	header := []byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, kind}
	if len(frame)-start-f.transportLen() <= size {
		header[1], size = unix.VIRTIO_NET_HDR_GSO_NONE, 0
	}
	for _, v := range []int{start + f.transportLen(), size, start, field} {
		header = binary.NativeEndian.AppendUint16(header, uint16(v))
	}
	return append(header, frame...)
}

// cut is what becomes of a packet that is to be cut into segments of that much payload.
func cut(packet []byte, size int) (segments [][]byte) {
	ipLen, protocol := inet.IPv4Len, packet[9]
	if packet[0]>>4 == 6 {
		ipLen, protocol = inet.IPv6Len, packet[6]
	}
	headers := ipLen + inet.UDPLen
	if protocol == unix.IPPROTO_TCP {
		headers = ipLen + int(packet[ipLen+12]>>4)*4
	}
	data := packet[headers:]
	for i := range max(1, (len(data)+size-1)/size) {
		at, end := i*size, min((i+1)*size, len(data))
		p := append(bytes.Clone(packet[:headers]), data[at:end]...)
		transport := p[ipLen:]
		if protocol == unix.IPPROTO_UDP {
			binary.BigEndian.PutUint16(transport[4:], uint16(len(transport)))
		} else {
			binary.BigEndian.PutUint32(transport[4:],
				binary.BigEndian.Uint32(transport[4:])+uint32(at))
			if i > 0 {
				transport[13] &^= flagCWR
			}
			if end < len(data) {
				transport[13] &^= inet.PSH | inet.FIN
			}
		}
		segments = append(segments, finished(p, ipLen, protocol, i))
	}
	return segments
}

// finished is the i-th segment with its IP header's length and ID, and all checksums.
func finished(p []byte, ipLen int, protocol uint8, i int) []byte {
	if ipLen == inet.IPv4Len {
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		binary.BigEndian.PutUint16(p[4:], binary.BigEndian.Uint16(p[4:])+uint16(i))
		inet.SetIPv4Checksum(p)
	} else {
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)-ipLen))
	}
	inet.SetTransportChecksum(addressOf(p, 0), addressOf(p, 1), protocol, p[ipLen:])
	return p
}

// addressOf is a packet's source (0) or destination (1).
func addressOf(p []byte, which int) netip.Addr {
	first, length := 12, 4
	if p[0]>>4 == 6 {
		first, length = 8, 16
	}
	a, _ := netip.AddrFromSlice(p[first+which*length:][:length])
	return a
}

// vnetLen is the length of struct virtio_net_hdr.
const vnetLen = 10

// receive returns the flow's next n segments at a port whose frames begin with a struct
// virtio_net_hdr; fewer if none came for a while. What arrives merged is cut again, and what has no
// checksum yet gets it.
func (f *flow) receive(p *port, n int) (segments [][]byte, err error) {
	for len(segments) < n {
		frame, err := p.next()
		if err != nil || frame == nil {
			return segments, err
		}
		if len(frame) <= vnetLen+ethLen || !f.has(frame[vnetLen+ethLen:]) {
			continue
		}
		packet := frame[vnetLen+ethLen:]
		size := len(packet)
		if frame[1] != unix.VIRTIO_NET_HDR_GSO_NONE {
			size = int(binary.NativeEndian.Uint16(frame[4:]))
		} else if frame[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 {
			segments = append(segments, packet)
			continue
		}
		segments = append(segments, cut(packet, size)...)
	}
	return segments, nil
}

// has tells the flow's packets from what stacks say by themselves.
func (f *flow) has(packet []byte) bool {
	at := f.ipLen()
	return len(packet) > at+2 &&
		int(packet[0]>>4) == map[bool]int{true: 4, false: 6}[f.from.Is4()] &&
		addressOf(packet, 0) == f.from && binary.BigEndian.Uint16(packet[at:]) == f.port
}

// crosses sends a packet of that much payload in at one end, and compares what comes out of the
// other. It returns into how many segments it was cut.
func (f *flow) crosses(from, to *end, length int, flags uint8) (int, error) {
	packet := f.packet(length, flags)
	want := cut(forwarded(packet, 2), f.size)
	if err := from.send(f.large(from.frame(packet), f.size)); err != nil {
		return 0, err
	}
	got, err := f.receive(to.port, len(want))
	if err == nil && len(got) > len(want) {
		err = fmt.Errorf("%d segments arrived, want %d", len(got), len(want))
	}
	// Two CPUs may have worked on them.
	slices.SortFunc(got, bytes.Compare)
	slices.SortFunc(want, bytes.Compare)
	if err := errors.Join(err, sameSet(got, want)); err != nil {
		return 0, fmt.Errorf("%d bytes: %w", length, err)
	}
	return len(want), nil
}

// end is where a flow begins or ends: frame puts the header before a packet that is sent there.
type end struct {
	*port
	frame func(packet []byte) []byte
}

const (
	largest = 65535 - ethLen // the longest packet that the kernel sends as one
	// How many segments one packet is cut into at most: by the sealer (SEALER_COUNT_MAX of
	// bpf/lib/sealer_structs.h), and of UDP (UDP_MAX_SEGMENTS before Linux 6.9).
	mostSegments, mostUDPSegments = 255, 64
)

// lengths are those around which something may change: of blocks of the cipher, of a segment, of
// all of them.
func (f *flow) lengths() []int {
	m, most := f.size, mostSegments
	if f.udp {
		most = mostUDPSegments
	}
	return []int{1, 15, 16, 17, m - 1, m, m + 1, m + 15, m + 16, m + 17, 2*m - 1, 2 * m, 2*m + 1,
		3*m + 2,
		min(largest-f.ipLen()-f.transportLen(), most*m)}
}

// sealed is how many packets the sealer was given numbers for.
func (w *weftNode) sealed(t *testing.T) uint64 {
	t.Helper()
	sas, err := w.sas.SAs()
	must(t, err)
	for _, sa := range sas {
		if sa.Out && sa.Lane == weftLanes {
			return sa.Counter
		}
	}
	t.Fatal("no SA of the sealer's")
	return 0
}

// opened is how many packets the sealer has opened.
func (w *weftNode) opened(t *testing.T) uint64 {
	t.Helper()
	return w.sealer.stats(t).Open.Packets
}

// oneWay sends a stream's packets of all lengths. The sealer must do its share of each that is cut
// into some number of segments: least, of what did counts.
func (w *weftNode) oneWay(t *testing.T, f *flow, from, to *end, did func(*testing.T) uint64,
	least func(segments int) uint64) error {
	if !f.udp {
		// Without it, the middle of a connection is the stack's.
		if _, err := f.crosses(from, to, 0, inet.SYN); err != nil {
			return fmt.Errorf("SYN: %w", err)
		}
		f.seq++
	}
	for _, length := range f.lengths() {
		w.sealer.forgive(t)
		before := did(t)
		n, err := f.crosses(from, to, length, f.flags)
		if err != nil {
			return err
		}
		if done := did(t) - before; done < least(n) {
			return fmt.Errorf("%d bytes: the sealer did %d of %d segments, want %d", length, done,
				n, least(n))
		}
	}
	return nil
}

// bothLarge sends a stream's packets from the pod to XFRM, and back.
func (w *weftNode) bothLarge(t *testing.T, x *xfrmNode, there, back flow) {
	pod := &end{w.pod, func(p []byte) []byte { return frame(gatewayMAC, podMAC, p) }}
	inside := &end{x.inside, func(p []byte) []byte { return frame(inside0MAC, inside1MAC, p) }}
	check := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%v; XFRM counts: %s; Weft: %s; sealer: %+v", err, x.errors(t), w.tells(),
				w.sealer.stats(t))
		}
	}
	t.Run("XFRM opens", func(t *testing.T) {
		// What is not to be cut is the hooks', or follows what was.
		check(t, w.oneWay(t, &there, pod, inside, w.sealed, func(n int) uint64 {
			if n == 1 {
				return 0
			}
			return uint64(n)
		}))
	})
	t.Run("XFRM seals", func(t *testing.T) {
		// The hooks open the rest where the sealer is late.
		check(t, w.oneWay(t, &back, inside, pod, w.opened, func(int) uint64 { return 1 }))
	})
}

// TestXFRMAndLarge has Linux's own ESP open what a sealer has cut and sealed, and a sealer open,
// and join again, what Linux has cut and sealed. Every segment arrives, as a network card would
// have cut it.
func TestXFRMAndLarge(t *testing.T) {
	w, x := newWeft(t, datapath.ModeTC, esp.EngineUser)
	for _, p := range []*port{w.pod, x.inside} {
		must(t, unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	}
	port := uint16(1000)
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			w.outer(t, family.six)
			w.rekey(t, x, edge-200, edge-200)
			for _, s := range streams {
				port++
				there := flow{stream: s, from: family.far, to: family.near, port: port,
					seq: 0xfffff000, id: 0xfff0}
				if s.size == 0 {
					there.size = maxInner(family.six) - there.ipLen() - there.transportLen()
				}
				back := there
				back.from, back.to, back.port = there.to, there.from, 1000+port
				t.Run(s.name, func(t *testing.T) { w.bothLarge(t, x, there, back) })
			}
			w.crossed(t)
		})
	}
}
