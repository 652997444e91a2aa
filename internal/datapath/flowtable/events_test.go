package flowtable

import (
	"net/netip"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath/bpf"
)

var (
	pod4, pod6   = netip.MustParseAddr("10.1.0.10"), netip.MustParseAddr("fd00:1::10")
	peer4, peer6 = netip.MustParseAddr("10.2.0.20"), netip.MustParseAddr("fd00:2::20")
)

func TestDecodeEvent(t *testing.T) {
	e := bpf.Event{TimeNs: MonotonicNow(), Src: bpf.ToAddr(peer6), Dst: bpf.ToAddr(pod6),
		Sport: bpf.Ntohs(80), Dport: bpf.Ntohs(1000), Len: 99, Slot: 7,
		Type: bpf.EventEnd, Verdict: bpf.VerdictStack, Hook: bpf.HookToWire,
		Direction: bpf.DirIngress, Family: 6, Proto: 6, TcpFlags: 1,
		Forward: bpf.Counter{Packets: 1, Bytes: 2}, Reply: bpf.Counter{Packets: 3, Bytes: 4}}
	got := decodeEvent(&e)
	if d := time.Since(got.Time); d < -time.Second || d > time.Minute {
		t.Errorf("time is off by %s", d)
	}
	got.Time = time.Time{}
	want := Event{Type: EventEnd, Verdict: "stack", Hook: "to_wire", Slot: 7, Direction: "ingress",
		Src: netip.AddrPortFrom(peer6, 80),
		Dst: netip.AddrPortFrom(pod6, 1000), Protocol: 6, TCPFlags: 1, Length: 99,
		Forward: Traffic{1, 2}, Reply: Traffic{3, 4}}
	if got != want {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	e.Src, e.Dst, e.Family = bpf.ToAddr(peer4), bpf.ToAddr(pod4), 4
	if got := decodeEvent(&e); got.Src.Addr() != peer4 || !got.Dst.Addr().Is4() {
		t.Errorf("IPv4: %s > %s", got.Src, got.Dst)
	}
	e = bpf.Event{Type: 9, Verdict: 9, Hook: 9, Direction: 9, Reason: 250}
	if got := decodeEvent(&e); got.Type != EventDrop || got.Verdict != "unknown_9" ||
		got.Reason != "reason_250" || got.Src.IsValid() {
		t.Errorf("values of a newer datapath: %+v", got)
	}
}
