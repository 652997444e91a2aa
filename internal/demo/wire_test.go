package demo

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
)

func TestSetEncryption(t *testing.T) {
	n := &lab.Node{Name: "a", ConfigFile: filepath.Join(t.TempDir(), "agent.yaml")}
	if err := os.WriteFile(n.ConfigFile,
		[]byte("node: a\nkeys: {drain: 500ms}\nencryption: {mode: strict}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := setEncryption(n, "off"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(n.ConfigFile)
	if err != nil || !strings.Contains(string(text), "mode: \"off\"") &&
		!strings.Contains(string(text), "mode: off") ||
		!strings.Contains(string(text), "drain: 500ms") {
		t.Errorf("%s %v", text, err)
	}
}

// TestOverheard tells a readable frame from a sealed one, and keeps one of each.
func TestOverheard(t *testing.T) {
	marker := encryptcheck.NewMarker()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	text := secret(marker)
	plain := udpFrame(mac, mac, netip.MustParseAddr("10.0.0.1"),
		netip.MustParseAddrPort("10.0.0.2:9"), text)
	esp := append(binary.BigEndian.AppendUint32(nil, 0x10000100), make([]byte, 12+len(text)+30)...)
	sealed := udpFrame(mac, mac, netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddrPort("192.0.2.2:4500"), esp)
	heard := &overheard{}
	detector := encryptcheck.NewDetector(encryptcheck.Rules{Marker: marker,
		Pods: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}})
	for range 2 {
		heard.frame(detector, encryptcheck.Frame{Data: plain}, marker)
		heard.frame(detector, encryptcheck.Frame{Data: sealed}, marker)
	}
	r := detector.Report()
	if r.Markers != 2 || r.Plain != 2 || r.Sealed != 2 || !bytes.Equal(heard.marked, plain) ||
		!bytes.Equal(heard.sealed, sealed) {
		t.Errorf("%+v", r)
	}
}

// TestIntrusions are frames that differ from the genuine one where they say.
func TestIntrusions(t *testing.T) {
	genuine := udpFrame(net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2},
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddrPort("192.0.2.2:4500"),
		make([]byte, 100))
	from := netip.MustParseAddr("10.0.0.1")
	sinks := &sinkPair{v4: &sink{at: netip.MustParseAddrPort("10.0.0.2:9")}}
	got := map[bpf.Reason][]byte{}
	for _, i := range intrusions(genuine, from, sinks.v4.at, []byte("text")) {
		got[i.reason] = i.frame
	}
	if !bytes.Equal(got[bpf.ReasonEspReplayed], genuine) {
		t.Error("a replayed packet is not the genuine one")
	}
	forged := got[bpf.ReasonEspBadTag]
	if !bytes.Equal(forged[:seqAt], genuine[:seqAt]) ||
		binary.BigEndian.Uint32(forged[seqAt:]) != 100 ||
		binary.BigEndian.Uint64(forged[ivAt:]) != 100 ||
		bytes.Equal(forged[ivAt+8:], genuine[ivAt+8:]) {
		t.Errorf("forged: %x", forged)
	}
	for reason, src := range map[bpf.Reason]string{bpf.ReasonEspUnknownPeer: "203.0.113.66",
		bpf.ReasonPlaintext: "10.0.0.1"} {
		p, err := inet.Parse(got[reason])
		if err != nil || p.Src.String() != src ||
			inet.Checksum(got[reason][inet.EthernetLen:inet.EthernetLen+inet.IPv4Len]) != 0 {
			t.Errorf("%s: %+v %v", reason, p, err)
		}
	}
}
