// Package tshark has another program read what Weft puts on the wire: tshark, Wireshark's
// engine, decodes our ESP and, given the key, decrypts it; Go's AES-GCM verifies every ICV.
//
// The key is the test's own: it opens a datapath in the place of an agent and installs it.
// Agents cannot be asked for theirs.
package tshark

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/netns"
)

const (
	epoch    = 3
	hostID   = 1 // the identity of what a node itself sends
	testPort = 7777
)

// end is one of the two nodes.
type end struct {
	ns         string
	addr4      netip.Prefix
	addr6      netip.Prefix
	pods       []netip.Prefix
	pod4, pod6 netip.Addr
}

func (e *end) do(t *testing.T, what string, fn func() error) {
	t.Helper()
	if err := netns.Do(e.ns, fn); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// nodes makes two namespaces, joined by the wire w0.
func nodes(t *testing.T) (a, b *end) {
	t.Helper()
	ends := [2]*end{}
	for i := range ends {
		name := fmt.Sprintf("wt-tshark-%d-%d", os.Getpid(), i)
		path, err := netns.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { netns.Delete(name) })
		ends[i] = &end{
			ns:    path,
			addr4: netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)), addr6: netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1)),
			pods: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.77.%d.0/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd77:%d::/64", i+1))},
			pod4: netip.MustParseAddr(fmt.Sprintf("10.77.%d.100", i+1)), pod6: netip.MustParseAddr(fmt.Sprintf("fd77:%d::100", i+1)),
		}
	}
	peer, err := os.Open(ends[1].ns)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	ends[0].do(t, "make the wire", func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0", Index: 100}, PeerName: "w0", PeerNamespace: netlink.NsFd(int(peer.Fd()))})
	})
	macs := [2]net.HardwareAddr{}
	for i, e := range ends {
		e.do(t, "raise the wire", func() (err error) { macs[i], err = e.raise(); return err })
	}
	for i, e := range ends {
		e.do(t, "neighbours", func() error { return neighbours(macs[1-i], ends[1-i].addr4.Addr(), ends[1-i].addr6.Addr()) })
	}
	return ends[0], ends[1]
}

func (e *end) raise() (net.HardwareAddr, error) {
	w0, err := netlink.LinkByName("w0")
	if err != nil {
		return nil, err
	}
	for _, p := range []netip.Prefix{e.addr4, e.addr6} {
		addr, err := netlink.ParseAddr(p.String())
		if err != nil {
			return nil, err
		}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(w0, addr); err != nil {
			return nil, err
		}
	}
	return w0.Attrs().HardwareAddr, netlink.LinkSetUp(w0)
}

func neighbours(mac net.HardwareAddr, addrs ...netip.Addr) error {
	w0, err := netlink.LinkByName("w0")
	if err != nil {
		return err
	}
	for _, a := range addrs {
		n := &netlink.Neigh{LinkIndex: w0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
		if err := netlink.NeighSet(n); err != nil {
			return err
		}
	}
	for range 300 { // until there is a carrier
		if w0, err = netlink.LinkByName("w0"); err != nil || w0.Attrs().OperState == netlink.OperUp {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("w0 has no carrier")
}

// lane is a key that the test knows.
type lane struct{ key, salt []byte }

// seals opens a datapath on a that seals for b with the test's keys.
func seals(t *testing.T, a, b *end) []lane {
	t.Helper()
	name := fmt.Sprintf("wt-tshark-%d", os.Getpid())
	bpf, state := filepath.Join("/sys/fs/bpf", name), filepath.Join(t.TempDir(), "state")
	var dp *datapath.Datapath
	t.Cleanup(func() {
		if dp != nil {
			dp.Close()
		}
		if err := netns.Do(a.ns, func() error { return datapath.Cleanup(bpf, state, slog.New(slog.DiscardHandler)) }); err != nil {
			t.Error(err)
		}
	})
	a.do(t, "open datapath", func() (err error) {
		dp, err = datapath.Open(datapath.Options{
			BPFDir: bpf, StateDir: state, Mode: datapath.ModeTC, Uplinks: []string{"w0"}, HostAddrs: []netip.Addr{a.addr4.Addr(), a.addr6.Addr()},
			PodCIDRs: a.pods, FlowEntries: 4096, EventsPerSecond: 1000, Log: slog.New(slog.DiscardHandler),
			Encrypt: &datapath.EncryptOptions{Engine: "bpf", Port: encryptcheck.DefaultPort},
		})
		return err
	})
	peer := datapath.Node{Name: "b", Addresses: []netip.Addr{b.addr4.Addr(), b.addr6.Addr()}, PodCIDRs: b.pods}
	a.do(t, "introduce the peer", func() error { return dp.SetNodes(t.Context(), []datapath.Node{peer}) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- netns.Do(a.ns, func() error { return dp.Run(ctx) }) }()
	t.Cleanup(func() { cancel(); <-done })
	lanes := make([]lane, dp.Lanes())
	for i := range lanes {
		sa := datapath.SA{Node: "b", Out: true, Epoch: epoch, Lane: uint8(i), ID: 1, Number: epoch, Expires: time.Now().Add(time.Hour)}
		_, _ = rand.Read(sa.Key[:]) // never fails
		_, _ = rand.Read(sa.Salt[:])
		lanes[i] = lane{bytes.Clone(sa.Key[:]), bytes.Clone(sa.Salt[:])}
		if err := dp.InstallSA(&sa); err != nil {
			t.Fatal(err)
		}
	}
	if err := dp.SealWith("b", epoch); err != nil {
		t.Fatal(err)
	}
	return lanes
}

// sizes are payload lengths that need every length of padding, the shortest and the longest.
func sizes() []int {
	out := []int{1390, 1391, 1392, 1393}
	for n := range 40 {
		out = append(out, n)
	}
	return out
}

// send sends a UDP datagram of every size to the pods of b, in both families.
func send(a, b *end) error {
	return netns.Do(a.ns, func() error {
		for _, dst := range []netip.Addr{b.pod4, b.pod6} {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, testPort)))
			if err != nil {
				return err
			}
			defer conn.Close()
			for _, n := range sizes() {
				if n > 1370 && dst.Is6() {
					n -= 20
				}
				if _, err := conn.Write(payload(n)); err != nil {
					return fmt.Errorf("send %d bytes to %s: %w", n, dst, err)
				}
			}
		}
		return nil
	})
}

func payload(n int) []byte { return bytes.Repeat([]byte("weft "), n/5+1)[:n] }

// open verifies a sealed packet as RFC 4106 has it, with RFC 4303's extended sequence number in what is authenticated.
func open(frame []byte, lanes []lane) error {
	p, err := encryptcheck.Parse(frame)
	if err != nil {
		return err
	}
	e, _ := p.ESP(encryptcheck.DefaultPort)
	if e.Epoch() != epoch || int(e.Lane()) >= len(lanes) || e.Identity() != hostID {
		return fmt.Errorf("SPI %08x", e.SPI)
	}
	block, err := aes.NewCipher(lanes[e.Lane()].key)
	if err != nil {
		return err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	aad := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, e.SPI), e.IV)
	text, err := gcm.Open(nil, slices.Concat(lanes[e.Lane()].salt, p.Payload[8:16]), p.Payload[16:], aad)
	if err != nil {
		return err
	}
	if end := len(text); len(p.Payload)%4 != 0 || text[end-1] != unix.IPPROTO_IPIP && text[end-1] != unix.IPPROTO_IPV6 {
		return fmt.Errorf("ESP of %d bytes, next header %d", len(p.Payload), text[end-1])
	}
	return nil
}

// capture writes what b's end of the wire gets to a pcap file, and returns the sealed frames.
func capture(t *testing.T, a, b *end, path string) (frames [][]byte) {
	t.Helper()
	on, err := encryptcheck.Open(b.ns, "w0")
	if err != nil {
		t.Fatal(err)
	}
	defer on.Close()
	if err := send(a, b); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := pcapgo.NewWriter(file)
	if err := out.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = on.Run(ctx, func(f encryptcheck.Frame) {
		p, err := encryptcheck.Parse(f.Data)
		if _, sealed := p.ESP(encryptcheck.DefaultPort); err != nil || !sealed {
			return
		}
		frames = append(frames, bytes.Clone(f.Data))
		info := gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: len(f.Data), Length: f.Length}
		if err := out.WritePacket(info, f.Data); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return frames
}

// associations are tshark's table of keys: an entry for each lane.
func associations(a, b *end, lanes []lane) []string {
	var args []string
	for i, l := range lanes {
		spi := uint32(epoch)<<28 | uint32(i)<<22 | hostID
		fields := []string{
			"IPv4", a.addr4.Addr().String(), b.addr4.Addr().String(), fmt.Sprintf("0x%08x", spi),
			"AES-GCM with 16 octet ICV [RFC4106]", "0x" + hex.EncodeToString(slices.Concat(l.key, l.salt)), "NULL", "", "64-bit", "0",
		}
		for i := range fields {
			fields[i] = `"` + fields[i] + `"`
		}
		args = append(args, "-o", "uat:esp_sa:"+strings.Join(fields, ","))
	}
	return args
}

// decoded is what tshark says of a packet: fields by name.
type decoded struct {
	Source struct {
		Layers map[string][]string `json:"layers"`
	} `json:"_source"`
}

func (d *decoded) field(name string) string { return strings.Join(d.Source.Layers[name], ",") }

// tshark runs it on a capture. extended says whether it took the extended sequence numbers of its table of
// keys: versions before 4.2 know none, and so cannot verify ICVs that cover their upper half.
func tshark(t *testing.T, path string, args ...string) (packets []decoded, extended bool) {
	t.Helper()
	args = append([]string{"-n", "-r", path, "-T", "json", "-o", "esp.enable_encryption_decode:TRUE", "-o", "esp.enable_authentication_check:TRUE"}, args...)
	for _, f := range []string{"esp.spi", "esp.sequence", "esp.icv_good", "esp.icv_bad", "esp.pad_len", "udp.dstport", "udp.payload", "data.data", "ip.dst", "ipv6.dst", "udp.checksum.status"} {
		args = append(args, "-e", f)
	}
	cmd := exec.Command("tshark", args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, errOut.String())
	}
	if err := json.Unmarshal(text, &packets); err != nil {
		t.Fatalf("tshark: %v: %s", err, errOut.String())
	}
	return packets, !strings.Contains(errOut.String(), "More fields than required")
}

// TestDecrypt has tshark decrypt packets of every padding, in both families.
func TestDecrypt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces and eBPF")
	}
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("needs tshark: apt-get install tshark")
	}
	a, b := nodes(t)
	lanes := seals(t, a, b)
	path := filepath.Join(t.TempDir(), "sealed.pcap")
	want := 2 * len(sizes())
	frames := capture(t, a, b, path)
	if len(frames) != want {
		t.Fatalf("%d sealed packets on the wire for %d datagrams", len(frames), want)
	}
	t.Run("the ICV, by Go's crypto", func(t *testing.T) {
		for i, frame := range frames {
			if err := open(frame, lanes); err != nil {
				t.Errorf("packet %d: %v", i, err)
			}
		}
	})
	t.Run("without the key", func(t *testing.T) {
		packets, _ := tshark(t, path)
		for i, p := range packets {
			if p.field("esp.spi") == "" || strings.Contains(p.field("udp.dstport"), fmt.Sprint(testPort)) {
				t.Errorf("packet %d: %+v", i, p)
			}
		}
	})
	t.Run("with the key", func(t *testing.T) {
		packets, extended := tshark(t, path, associations(a, b, lanes)...)
		if !extended {
			t.Log("this tshark knows no extended sequence numbers: only Go's AES-GCM verifies the ICVs")
		}
		if len(packets) != want {
			t.Fatalf("tshark sees %d packets of %d", len(packets), want)
		}
		for i, p := range packets {
			opened(t, i, &p, a, b)
			if extended && p.field("esp.icv_good") != "1" {
				t.Errorf("packet %d: tshark does not find the ICV good: %+v", i, p)
			}
		}
	})
	t.Run("with another key", func(t *testing.T) {
		wrong := slices.Clone(lanes)
		for i := range wrong {
			wrong[i].key = bytes.Repeat([]byte{7}, 32)
		}
		packets, _ := tshark(t, path, associations(a, b, wrong)...)
		for i, p := range packets {
			if strings.Contains(p.field("data.data"), hex.EncodeToString(payload(20))) {
				t.Errorf("packet %d was read with a wrong key: %+v", i, p)
			}
		}
	})
}

// opened holds what tshark read in a packet against what was sent as the i-th.
func opened(t *testing.T, i int, p *decoded, a, b *end) {
	t.Helper()
	n, dst := sizes()[i%len(sizes())], b.pod4.String()
	field := "ip.dst"
	if i >= len(sizes()) {
		dst, field = b.pod6.String(), "ipv6.dst"
		if n > 1370 {
			n -= 20
		}
	}
	if !strings.Contains(p.field(field), dst) || !strings.Contains(p.field("udp.dstport"), fmt.Sprint(testPort)) {
		t.Errorf("packet %d to %s: %+v", i, dst, p)
	}
	if n > 0 && p.field("data.data") != hex.EncodeToString(payload(n)) {
		t.Errorf("packet %d: %d bytes of text are %q", i, n, p.field("data.data"))
	}
}
