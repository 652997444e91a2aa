package kernels

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// inVM says that this is one of the VMs of `make test-kernels`, where nothing may be missing.
var inVM = os.Getenv("WEFT_VM") != ""

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
}

// missing skips a test for what this machine's kernel lacks; in a VM it fails it.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if inVM {
		t.Fatalf(format, args...)
	}
	t.Skipf("needs "+format+": `make test-kernels` runs this in VMs", args...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newNS makes a network namespace that goes with the test.
func newNS(t testing.TB, name string) string {
	t.Helper()
	return nettest.New(t, "kn-"+name)
}

// ip runs commands of iproute2 in a namespace.
func ip(ns string, commands ...string) error {
	return netns.Do(ns, func() error {
		command := exec.Command("ip", "-batch", "-")
		command.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("ip: %w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	})
}

// sysctls writes files below /proc/sys/net of a namespace.
func sysctls(t testing.TB, ns string, settings map[string]string) {
	t.Helper()
	must(t, netns.Do(ns, func() error {
		for name, value := range settings {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	}))
}

// port sends and receives whole frames at an interface.
type port struct {
	fd   int
	name string
}

func newPort(t testing.TB, ns, name string) *port {
	t.Helper()
	p := &port{name: name}
	must(t, netns.Do(ns, func() error {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		all := int(binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff}))
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			all); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: device.Index}),
		)
	}))
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

func (p *port) send(frame []byte) error {
	if _, err := unix.Write(p.fd, frame); err != nil {
		return fmt.Errorf("send %d bytes at %s: %w", len(frame), p.name, err)
	}
	return nil
}

// next returns the next frame, nil if none came for a while.
func (p *port) next() ([]byte, error) {
	buffer := make([]byte, 128<<10)
	for {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}},
			int(patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || ready == 0 {
			return nil, err
		}
		length, err := unix.Read(p.fd, buffer)
		if err != nil {
			return nil, fmt.Errorf("receive at %s: %w", p.name, err)
		}
		return buffer[:length], nil
	}
}

// receive returns the packets of the next n frames that take keeps, without their Ethernet headers;
// fewer if none came for a while. take gets and returns a packet.
func (p *port) receive(n int, take func(packet []byte) []byte) ([][]byte, error) {
	var packets [][]byte
	for len(packets) < n {
		frame, err := p.next()
		if err != nil || frame == nil {
			return packets, err
		}
		if len(frame) <= ethLen {
			continue
		}
		if packet := take(bytes.Clone(frame[ethLen:])); packet != nil {
			packets = append(packets, packet)
		}
	}
	return packets, nil
}

// patience is how long a packet may take in a VM whose CPUs are busy elsewhere.
const patience = 2 * time.Minute

const ethLen = 14

func mac(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }

// frame puts an Ethernet header before a packet.
func frame(to, from net.HardwareAddr, packet []byte) []byte {
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	return inet.Ethernet(from, to, kind, packet)
}

// experimental is a protocol number for experiments (RFC 3692): what it carries can have any
// length, and no stack has an opinion on it.
const experimental = 253

// newPacket returns an IP packet of that length, its payload told by seed.
func newPacket(from, to netip.Addr, length int, seed byte) []byte {
	p := make([]byte, length)
	for i := range p {
		p[i] = byte(i)*31 + seed
	}
	return inet.Packet{
		Src: from, Dst: to, TTL: inet.DefaultTTL, Fragment: inet.DontFragment,
		Protocol: experimental, Payload: p[minLen(from)-1:],
	}.IP()
}

// minLen is the length of a packet with one byte of payload.
func minLen(inner netip.Addr) int {
	if inner.Is4() {
		return inet.IPv4Len + 1
	}
	return inet.IPv6Len + 1
}

// forwarded is the packet as it looks after that many routers.
func forwarded(packet []byte, routers uint8) []byte {
	p := bytes.Clone(packet)
	if p[0]>>4 == 6 {
		p[7] -= routers
		return p
	}
	p[8] -= routers
	inet.SetIPv4Checksum(p)
	return p
}

// isExperimental keeps the packets that newPacket makes: not what stacks say by themselves.
func isExperimental(p []byte) []byte {
	if (p[0]>>4 == 4 && len(p) > 20 && p[9] == experimental) ||
		(p[0]>>4 == 6 && len(p) > 40 && p[6] == experimental) {
		return p
	}
	return nil
}

// sameSet compares packets in order, and says which is the first that differs.
func sameSet(got, want [][]byte) error {
	for i, w := range want {
		if i >= len(got) {
			return fmt.Errorf("packet %d of %d (%d bytes) did not arrive", i+1, len(want), len(w))
		}
		if !bytes.Equal(got[i], w) {
			return fmt.Errorf("packet %d of %d (%d bytes) arrived as\n%x, want\n%x", i+1, len(want),
				len(w), got[i], w)
		}
	}
	return nil
}
