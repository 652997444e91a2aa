package tshark

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/sealer/control"
)

// What the frames on a sealer's tap begin with: struct virtio_net_hdr_v1, and in the Ethernet
// addresses' place a kind, a count, an SA, an identity and a sequence number
// (bpf/lib/sealer_structs.h).
const (
	vnetLen              = 12
	kindSeal4, kindSeal6 = 1, 2
	kindSealed           = 4
	kindRefused          = 6
	unknownSA            = 1<<22 - 1
	knownSA              = 1<<10 | epoch<<6 // lane 0
	needsSum             = 1
	gsoTCP4, gsoTCP6     = 1, 4
	gsoUDP               = 5
	flagECE, flagCWR     = 0x40, 0x80
)

func tapHeader(kind, count uint8, sa, identity uint32, seq uint64) []byte {
	hi := uint64(kind)<<61 | uint64(count)<<53 | uint64(sa)<<31 | uint64(identity)<<9 | seq>>30
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, hi), uint32(seq<<2))
}

// sealer is a weft-sealer whose tap is a pair of sockets: the test is the hooks.
type sealer struct {
	hooks int
	seq   uint64
}

func startSealer(t *testing.T, key lane) *sealer {
	t.Helper()
	dir := t.TempDir()
	binaryPath := os.Getenv("WEFT_SEALER")
	if binaryPath == "" {
		binaryPath = filepath.Join(dir, control.Program)
		build := exec.Command("go", "build", "-o", binaryPath, "weft.dev/weft/cmd/weft-sealer")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build: %v: %s", err, text)
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]) })
	_ = unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})
	tap := os.NewFile(uintptr(pair[1]), "tap")
	defer tap.Close()
	p, err := control.Start(t.Context(), control.Options{Binary: binaryPath, Tap: tap, SocketPath: filepath.Join(dir, "sock")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill(); <-p.Done() })
	k := control.Key{Out: true, SA: knownSA, Fingerprint: 1, Key: [32]byte(key.key), Salt: [4]byte(key.salt)}
	for _, err := range []error{
		p.Configure(t.Context(), control.Config{ESPPort: encryptcheck.DefaultPort}), p.Install(t.Context(), k), p.Begin(t.Context()),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return &sealer{hooks: pair[0], seq: 1<<32 - 40} // the upper half of the number changes
}

// seal gives the process a packet that it cuts into count, and returns all that it makes of it.
func (s *sealer) seal(t *testing.T, six bool, count int, vnet, packet []byte) (sealed []answer) {
	t.Helper()
	kind := uint8(kindSeal4)
	if six {
		kind = kindSeal6
	}
	s.send(t, tapHeader(kind, uint8(count), knownSA, hostID, s.seq), vnet, packet)
	s.seq += uint64(count)
	// What another frame might join waits until the process finds none, so nothing is sent before
	// each number was seen.
	for left := count; left > 0; {
		a := s.read(t, kindSealed, knownSA)
		sealed = append(sealed, a)
		if left -= a.count; left < 0 {
			t.Fatalf("%d numbers more than the %d that were given", -left, count)
		}
	}
	// Of a key that it has not: the next that it says, if that was all.
	s.send(t, tapHeader(kindSeal4, 1, unknownSA, hostID, 1), make([]byte, vnetLen),
		inet.Packet{Src: netip.IPv4Unspecified(), Dst: netip.IPv4Unspecified(), Protocol: 17}.IP())
	s.read(t, kindRefused, unknownSA)
	return sealed
}

func (s *sealer) send(t *testing.T, header, vnet, packet []byte) {
	t.Helper()
	frame := append(append(bytes.Clone(vnet), header...), 0x08, 0x00)
	if packet[0]>>4 == 6 {
		copy(frame[len(frame)-2:], []byte{0x86, 0xdd})
	}
	if err := unix.Send(s.hooks, append(frame, packet...), 0); err != nil {
		t.Fatal(err)
	}
}

// answer is what the process makes of packets: how many, and a frame from the IP header on, to be
// cut by size.
type answer struct {
	count, size int
	packet      []byte
}

// read waits for the process's next frame, which must be of a kind and of an SA.
func (s *sealer) read(t *testing.T, kind uint8, sa uint32) answer {
	t.Helper()
	buf := make([]byte, 1<<17)
	n, err := unix.Read(s.hooks, buf)
	if err != nil {
		t.Fatalf("wait for kind %d of SA %#x: %v", kind, sa, err)
	}
	hi := binary.BigEndian.Uint64(buf[vnetLen:])
	if uint8(hi>>61) != kind || uint32(hi>>31)&unknownSA != sa {
		t.Fatalf("kind %d of SA %#x, identity or reason %d; want kind %d of SA %#x",
			hi>>61, hi>>31&unknownSA, hi>>9&unknownSA, kind, sa)
	}
	return answer{
		count: int(uint8(hi >> 53)), size: int(binary.LittleEndian.Uint16(buf[4:])), packet: buf[vnetLen+14 : n],
	}
}

// wire does what is left to hook and network card: addresses, one packet for each piece, lengths
// and checksums.
func wire(t *testing.T, from, to netip.Addr, a answer) (frames [][]byte) {
	t.Helper()
	sealed, size := a.packet, a.size
	head := 20
	if from.Is6() {
		head = 40
	}
	payload := sealed[head+8:]
	if size == 0 {
		size = len(payload)
	}
	for ; len(payload) > 0; payload = payload[min(size, len(payload)):] {
		p := append(bytes.Clone(sealed[:head+8]), payload[:min(size, len(payload))]...)
		kind := uint16(unix.ETH_P_IP)
		if from.Is6() {
			kind = unix.ETH_P_IPV6
			copy(p[8:], from.AsSlice())
			copy(p[24:], to.AsSlice())
			binary.BigEndian.PutUint16(p[4:], uint16(len(p)-head))
		} else {
			copy(p[12:], from.AsSlice())
			copy(p[16:], to.AsSlice())
			binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
			inet.SetIPv4Checksum(p)
		}
		udp := p[head:]
		binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
		udp[6], udp[7] = 0, 0
		inet.SetTransportChecksum(from, to, unix.IPPROTO_UDP, udp)
		if port := binary.BigEndian.Uint16(udp); port>>14 != 2 {
			t.Errorf("source port %d", port)
		}
		frames = append(frames, inet.Ethernet(make([]byte, 12), nil, kind, p))
	}
	return frames
}

// stream is a large packet of TCP or UDP that a pod leaves to its device to cut.
type stream struct {
	name     string
	six      bool // the inner packet
	udp      bool
	size     int // MSS; 0: not to be cut
	length   int
	flags    uint8
	tos      uint8
	stamps   bool // TCP's timestamps (RFC 7323)
	segments int
}

var streams = []stream{
	{name: "odd MSS, short end, PSH", size: 1001, length: 5*1001 + 333, flags: inet.ACK | inet.PSH, segments: 6},
	{name: "timestamps, FIN", size: 1387, length: 3*1387 + 1, flags: inet.ACK | inet.PSH | inet.FIN, stamps: true, segments: 4},
	{name: "ECN", size: 1001, length: 4 * 1001, flags: inet.ACK | flagCWR | flagECE, tos: 2, stamps: true, segments: 4},
	{name: "IPv6", six: true, size: 1001, length: 5*1001 + 2, flags: inet.ACK | inet.PSH, tos: 0xb9, segments: 6},
	{name: "IPv6, timestamps, ECN, FIN", six: true, size: 1353, length: 7*1353 + 77, flags: inet.ACK | flagCWR | inet.FIN, tos: 1, stamps: true, segments: 8},
	{name: "more than a UDP packet holds", size: 1400, length: 46 * 1400, flags: inet.ACK, stamps: true, segments: 46},
	{name: "one segment", length: 999, flags: inet.ACK | inet.PSH, segments: 1},
	{name: "UDP in segments", udp: true, size: 999, length: 4*999 + 5, segments: 5},
	{name: "UDP in segments, IPv6", six: true, udp: true, size: 1200, length: 3 * 1200, segments: 3},
}

const firstSeq, firstID, stamp = 0xfffff000, 0xfffe, 0x01020304

// packet is the stream's large packet, its checksum left to the device, and the header that says
// so.
func (s *stream) packet(a, b *end) (vnet, packet []byte) {
	p := inet.Packet{Src: a.addr4.Addr(), Dst: b.pod4, TTL: 64, TOS: s.tos, ID: firstID, Fragment: inet.DontFragment, Protocol: unix.IPPROTO_TCP}
	ipLen, gso, field := 20, gsoTCP4, 16
	if s.six {
		p.Src, p.Dst, p.ID, p.Fragment = a.addr6.Addr(), b.pod6, 0, 0
		ipLen, gso = 40, gsoTCP6
	}
	text := s.text()
	transport := 8
	if s.udp {
		p.Protocol, gso, field = unix.IPPROTO_UDP, gsoUDP, 6
		p.Payload = inet.UDP(testPort, testPort, text)
	} else {
		header := inet.TCP(inet.TCPHeader{SrcPort: testPort, DstPort: testPort, Seq: firstSeq, Flags: s.flags, Window: 500}, nil)
		if s.stamps {
			header[12] = 8 << 4
			header = binary.BigEndian.AppendUint32(append(header, 1, 1, 8, 10), stamp)
			header = binary.BigEndian.AppendUint32(header, stamp+1)
		}
		transport = len(header)
		p.Payload = append(header, text...)
	}
	packet = p.IP()
	// The field has the pseudo-header's sum: of the segment without its own bytes.
	pseudo := append(append(p.Src.AsSlice(), p.Dst.AsSlice()...), 0, p.Protocol)
	binary.BigEndian.PutUint16(packet[ipLen+field:], ^inet.Checksum(binary.BigEndian.AppendUint32(pseudo, uint32(len(p.Payload)))))
	vnet = []byte{needsSum, uint8(gso)}
	if s.size == 0 {
		vnet[1] = 0
	} else if s.flags&flagCWR != 0 {
		vnet[1] |= 0x80
	}
	for _, v := range []int{14 + ipLen + transport, s.size, 14 + ipLen, field, 0} {
		vnet = binary.LittleEndian.AppendUint16(vnet, uint16(v))
	}
	return vnet, packet
}

func (s *stream) text() []byte {
	b := make([]byte, s.length)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// check holds what tshark says of the i-th segment against what it should be.
func (s *stream) check(t *testing.T, i int, p *decoded) {
	t.Helper()
	size := s.size
	if size == 0 {
		size = s.length
	}
	text := s.text()[i*size : min((i+1)*size, s.length)]
	want := map[string]string{"_ws.malformed": ""}
	field := "udp.payload"
	if !s.udp {
		field = "tcp.payload"
		flags := s.flags
		if i > 0 {
			flags &^= flagCWR
		}
		if i < s.segments-1 {
			flags &^= inet.PSH | inet.FIN
		}
		want["tcp.seq_raw"] = fmt.Sprint(uint32(firstSeq + i*size))
		want["tcp.flags"] = fmt.Sprintf("0x%04x", flags)
		want["tcp.checksum.status"] = "1"
		if s.stamps {
			want["tcp.options.timestamp.tsval"] = fmt.Sprint(stamp)
		}
	}
	for name, value := range want {
		if got := p.field(name); got != value {
			t.Errorf("segment %d: %s is %s, want %s", i, name, got, value)
		}
	}
	// The inner header's is the last.
	last := func(name string) string {
		values := p.Source.Layers[name]
		if len(values) == 0 {
			return ""
		}
		return strings.ReplaceAll(values[len(values)-1], ":", "")
	}
	if got := last(field); got != hex.EncodeToString(text) {
		t.Errorf("segment %d: %s has %d bytes, want %d", i, field, len(got)/2, len(text))
	}
	if !s.six && (last("ip.checksum.status") != "1" || last("ip.id") != fmt.Sprintf("0x%04x", uint16(firstID+i))) {
		t.Errorf("segment %d: IPv4 checksum %s, ID %s", i, last("ip.checksum.status"), last("ip.id"))
	}
	if s.udp && last("udp.checksum.status") != "1" {
		t.Errorf("segment %d: UDP checksum %s", i, p.field("udp.checksum.status"))
	}
}

// TestDecryptSealer has tshark decrypt what a sealer has cut and sealed: each segment is whole, its
// headers are those that a network card would have written, and its checksums are right.
func TestDecryptSealer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a sealer has a user of its own")
	}
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("needs tshark: apt-get install tshark")
	}
	a, b := ends()
	key := lane{key: bytes.Repeat([]byte{0x5e, 1, 0xa1}, 11)[:32], salt: []byte{1, 2, 3, 4}}
	s := startSealer(t, key)
	for _, outer := range []struct {
		name     string
		from, to netip.Addr
	}{{"IPv4", a.addr4.Addr(), b.addr4.Addr()}, {"IPv6", a.addr6.Addr(), b.addr6.Addr()}} {
		for _, row := range streams {
			t.Run(row.name+" over "+outer.name, func(t *testing.T) {
				vnet, packet := row.packet(a, b)
				var frames [][]byte
				for _, a := range s.seal(t, outer.from.Is6(), row.segments, vnet, packet) {
					frames = append(frames, wire(t, outer.from, outer.to, a)...)
				}
				row.decrypts(t, frames, key, associations(outer.from, outer.to, []lane{key}))
			})
		}
	}
}

// decrypts holds the frames of one stream to be its segments.
func (s *stream) decrypts(t *testing.T, frames [][]byte, key lane, table []string) {
	t.Helper()
	if len(frames) != s.segments {
		t.Fatalf("%d packets, want %d", len(frames), s.segments)
	}
	for i, f := range frames {
		if err := open(f, []lane{key}); err != nil {
			t.Errorf("packet %d: %v", i, err)
		}
		class := f[15]
		if f[14]>>4 == 6 {
			class = f[14]<<4 | f[15]>>4
		}
		if class != s.tos {
			t.Errorf("packet %d: type of service %#x, want %#x", i, class, s.tos)
		}
	}
	path := filepath.Join(t.TempDir(), "sealed.pcap")
	writeCapture(t, path, frames)
	packets, extended := tshark(t, path, table...)
	if len(packets) != s.segments {
		t.Fatalf("tshark sees %d packets of %d", len(packets), s.segments)
	}
	for i, p := range packets {
		s.check(t, i, &p)
		if extended && p.field("esp.icv_good") != "1" {
			t.Errorf("packet %d: tshark does not find the ICV good: %+v", i, p)
		}
	}
}

func writeCapture(t *testing.T, path string, frames [][]byte) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := pcapgo.NewWriter(file)
	if err := out.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		info := gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: len(f), Length: len(f)}
		if err := out.WritePacket(info, f); err != nil {
			t.Fatal(err)
		}
	}
}
