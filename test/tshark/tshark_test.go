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
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
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
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
)

const (
	epoch    = 3
	hostID   = 1 // the identity of what a node itself sends
	testPort = 7777
)

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
			conn, err := net.DialUDP("udp", nil,
				net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, testPort)))
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

// open verifies a sealed packet as RFC 4106 has it, with RFC 4303's extended sequence number in
// what is authenticated.
func open(frame []byte, lanes []lane) error {
	p, err := inet.Parse(frame)
	if err != nil {
		return err
	}
	e, _ := encryptcheck.ParseESP(p, encryptcheck.DefaultPort)
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
	text, err := gcm.Open(nil, slices.Concat(lanes[e.Lane()].salt, p.Payload[8:16]), p.Payload[16:],
		aad)
	if err != nil {
		return err
	}
	if end := len(text); len(p.Payload)%4 != 0 || text[end-1] != unix.IPPROTO_IPIP &&
		text[end-1] != unix.IPPROTO_IPV6 {
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = on.Run(ctx, func(f encryptcheck.Frame) {
		p, err := inet.Parse(f.Data)
		if _, sealed := encryptcheck.ParseESP(p, encryptcheck.DefaultPort); err != nil || !sealed {
			return
		}
		frames = append(frames, bytes.Clone(f.Data))
		info := gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: len(f.Data),
			Length: f.Length}
		if err := out.WritePacket(info, f.Data); err != nil {
			t.Error(err)
		}
		if len(frames) == 2*len(sizes()) {
			cancel() // what comes beyond them is still read
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return frames
}

// associations are tshark's table of keys: an entry for each lane.
func associations(from, to netip.Addr, lanes []lane) []string {
	var args []string
	family := "IPv4"
	if from.Is6() {
		family = "IPv6"
	}
	for i, l := range lanes {
		spi := uint32(epoch)<<28 | uint32(i)<<22 | hostID
		fields := []string{
			family, from.String(), to.String(), fmt.Sprintf("0x%08x", spi),
			"AES-GCM with 16 octet ICV [RFC4106]",
			"0x" + hex.EncodeToString(slices.Concat(l.key, l.salt)), "NULL", "", "64-bit", "0",
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

// tshark runs it on a capture. extended says whether it took the extended sequence numbers of its
// table of keys: versions before 4.2 know none, and so cannot verify ICVs that cover their upper
// half.
func tshark(t *testing.T, path string, args ...string) (packets []decoded, extended bool) {
	t.Helper()
	args = append([]string{"-n", "-r", path, "-T", "json", "-o",
		"esp.enable_encryption_decode:TRUE", "-o", "esp.enable_authentication_check:TRUE"}, args...)
	for _, protocol := range []string{"ip", "tcp", "udp"} {
		args = append(args, "-o", protocol+".check_checksum:TRUE")
	}
	for _, f := range []string{"esp.spi", "esp.sequence", "esp.icv_good", "esp.icv_bad",
		"esp.pad_len", "udp.dstport", "udp.payload", "data.data", "ip.dst", "ipv6.dst",
		"udp.checksum.status", "ip.checksum.status", "ip.id", "_ws.malformed", "tcp.seq_raw",
		"tcp.flags", "tcp.payload", "tcp.checksum.status", "tcp.options.timestamp.tsval"} {
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
			if p.field("esp.spi") == "" ||
				strings.Contains(p.field("udp.dstport"), fmt.Sprint(testPort)) {
				t.Errorf("packet %d: %+v", i, p)
			}
		}
	})
	t.Run("with the key", func(t *testing.T) {
		packets, extended := tshark(t, path, associations(a.addr4.Addr(), b.addr4.Addr(), lanes)...)
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
		packets, _ := tshark(t, path, associations(a.addr4.Addr(), b.addr4.Addr(), wrong)...)
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
	if !strings.Contains(p.field(field), dst) ||
		!strings.Contains(p.field("udp.dstport"), fmt.Sprint(testPort)) {
		t.Errorf("packet %d to %s: %+v", i, dst, p)
	}
	if n > 0 && p.field("data.data") != hex.EncodeToString(payload(n)) {
		t.Errorf("packet %d: %d bytes of text are %q", i, n, p.field("data.data"))
	}
}
