package sealer

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns/nettest"
)

// merger is the kernel's own GRO: what is written to a tap with NAPI goes through it.
type merger struct {
	t     *testing.T
	hooks *hooks
	tap   *os.File
}

func newMerger(t *testing.T) *merger {
	t.Helper()
	ns := nettest.New(t, "glue")
	m := &merger{t: t, tap: testTapWith(t, ns, unix.IFF_NAPI)}
	m.hooks = newHooks(t, ns, tapName)
	timeout := unix.NsecToTimeval(int64(30 * time.Millisecond))
	if err := unix.SetsockoptTimeval(m.hooks.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&timeout); err != nil {
		t.Fatal(err)
	}
	nettest.Do(t, ns, func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Change(tapName, map[string]bool{"rx-gro": true, "rx-udp-gro-forwarding": true})
	})
	// Packets are written one by one: without this, each would leave at once. A tick of the
	// kernel's clock lets them go all the same.
	hold := fmt.Sprintf("echo 5000000 > /sys/class/net/%s/gro_flush_timeout", tapName)
	if out, err := exec.Command("ip", "netns", "exec", filepath.Base(ns), "sh", "-c",
		hold).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	return m
}

// merge is what the kernel makes of packets: frames with their vnet header.
func (m *merger) merge(packets [][]byte) (frames [][]byte) {
	m.t.Helper()
	for _, p := range packets {
		if _, err := m.tap.Write(frame(vnet{}, meta{}, p)); err != nil {
			m.t.Fatal(err)
		}
	}
	for {
		f := m.hooks.receive()
		if f == nil {
			return frames
		}
		frames = append(frames, f)
	}
}

// glued is what the engine makes of packets that it has opened one after another.
func glued(e *engine, out *record, packets [][]byte) [][]byte {
	e.glue.reset()
	for i, p := range packets {
		e.opened(meta{kind: kindOpened, count: 1, sa: testSA, identity: testIdentity,
			seq: uint64(i + 1)}, bytes.Clone(p))
	}
	e.flush()
	return out.take()
}

// glueRow is a few packets of which one or two are not like the others.
type glueRow struct {
	name  string
	n     int          // packets; 5 if 0
	size  int          // of each one's payload; 1000 if 0
	with  func(*build) // changes each before it is built
	after func(i int, ip []byte)
	want  []int // how many packets each frame is made of
	only  int   // 4, 6: of one family
	// What Linux does with it that is not done here, and why.
	differs string
	// The odd one is of another flow, or of none: Linux keeps the batch meanwhile, which nothing
	// breaks in UDP over IPv6, and the odd one overtakes.
	apart bool
}

// build is a packet to come.
type build struct {
	i    int
	p    inet.Packet
	tcp  tcp
	data []byte
	udp  bool
	skip uint32 // of TCP's sequence, before this one
}

// at changes the packet of one index.
func at(i int, change func(*build)) func(*build) {
	return func(b *build) {
		if b.i == i {
			change(b)
		}
	}
}

// packets are the row's.
func (r glueRow) packets(ip6, udp bool) (all [][]byte) {
	seq := uint32(0xfffffa00) // wraps
	n := 5
	if r.n != 0 {
		n = r.n
	}
	for i := range n {
		b := build{i: i, p: podPacket(ip6), udp: udp, data: pattern(1000)}
		if r.size != 0 {
			b.data = pattern(r.size)
		}
		if !ip6 {
			b.p.ID = uint16(0xfffe + i)
		}
		b.tcp = tcp{ack: 9, flags: tcpACK, window: 700, options: timestamps(1, 2)}
		if r.with != nil {
			r.with(&b)
		}
		b.tcp.seq = seq + b.skip
		seq = b.tcp.seq + uint32(len(b.data))
		ip := b.p.UDP(5000, 53, b.data).IP()
		if !udp {
			ip = segment(b.p, b.tcp, b.data)
		}
		if r.after != nil {
			r.after(i, ip)
		}
		all = append(all, ip)
	}
	return all
}

func flip(b *byte) { *b ^= 0x55 }

// both are rows that hold for TCP and for UDP.
func both() []glueRow {
	return []glueRow{
		{name: "all alike", want: []int{5}},
		{name: "last one short", with: at(4, func(b *build) { b.data = pattern(1) }),
			want: []int{5}},
		{name: "short in the middle", with: at(2, func(b *build) { b.data = pattern(999) }),
			want: []int{3, 2}},
		{name: "longer in the middle", with: at(2, func(b *build) { b.data = pattern(1200) }),
			want: []int{2, 2, 1}},
		{name: "no payload in the middle", apart: true,
			with: at(2, func(b *build) { b.data = nil }), want: []int{2, 1, 2}},
		{name: "odd size", size: 333, want: []int{5}},
		{name: "more than 64 kB", n: 50, size: 1448, want: []int{45, 5}},
		{name: "more than 64", n: 70, size: 100, want: []int{64, 6},
			differs: "has no such limit for TCP"},
		{name: "another source", apart: true, with: at(2, func(b *build) { b.p.Src = b.p.Dst }),
			want: []int{2, 1, 2}},
		{name: "another destination", apart: true,
			with: at(2, func(b *build) { b.p.Dst = b.p.Src }), want: []int{2, 1, 2}},
		{name: "another TTL", with: at(2, func(b *build) { b.p.TTL = 62 }), want: []int{2, 1, 2}},
		{name: "another DSCP", with: at(2, func(b *build) { b.p.TOS = 0x20 }),
			want: []int{2, 1, 2}},
		{name: "congestion marked", with: func(b *build) { b.p.TOS = 2 | uint8(b.i/4) },
			want: []int{4, 1}},
		{name: "capable of ECN, all", with: func(b *build) { b.p.TOS = 2 }, want: []int{5}},
		{name: "wrong checksum", apart: true, after: func(i int, ip []byte) {
			if i == 2 {
				flip(&ip[len(ip)-1])
			}
		}, want: []int{2, 1, 2}},
		{name: "wrong checksum of the first", after: func(i int, ip []byte) {
			if i == 0 {
				flip(&ip[len(ip)-1])
			}
		}, want: []int{1, 4}},
		{name: "numbers stay", only: 4, with: func(b *build) { b.p.ID = 7 }, want: []int{5}},
		{name: "numbers stay, may be fragmented", only: 4,
			with: func(b *build) { b.p.ID, b.p.Fragment = 7, 0 }, want: []int{1, 1, 1, 1, 1},
			differs: "glues it since 6.18 and notes that the number stays, which virtio_net's header cannot"},
		{name: "numbers go up, may be fragmented", only: 4,
			with: func(b *build) { b.p.Fragment = 0 }, want: []int{5}},
		{name: "a number is left out", only: 4, with: func(b *build) { b.p.ID += uint16(b.i / 3) },
			want: []int{3, 2}},
		{name: "numbers stay, then go up", only: 4,
			with: func(b *build) { b.p.ID = uint16(max(b.i, 2)) }, want: []int{3, 2}},
		{name: "numbers go up, then stay", only: 4,
			with: func(b *build) { b.p.ID = uint16(min(b.i, 2)) }, want: []int{3, 2}},
		{name: "one may be fragmented", only: 4, with: at(2, func(b *build) { b.p.Fragment = 0 }),
			want: []int{2, 1, 2}},
		{name: "a fragment", only: 4, with: at(2, func(b *build) { b.p.Fragment = 0x2000 }),
			want: []int{2, 1, 2}},
		{name: "IPv4 options", only: 4,
			with: at(2, func(b *build) { b.p.Options = []byte{1, 1, 1, 0} }), want: []int{2, 1, 2}},
		{name: "IPv4 options, all", only: 4,
			with: func(b *build) { b.p.Options = []byte{1, 1, 1, 0} }, want: []int{1, 1, 1, 1, 1}},
		{name: "wrong IPv4 checksum", only: 4, after: func(i int, ip []byte) {
			if i == 2 {
				flip(&ip[10])
			}
		}, want: []int{2, 1, 2}},
		{name: "another flow label", apart: true, only: 6, after: func(i int, ip []byte) {
			if i == 2 {
				flip(&ip[3])
			}
		}, want: []int{2, 1, 2}},
	}
}

func tcpRows() []glueRow {
	flags := func(i int, f uint8) func(*build) { return at(i, func(b *build) { b.tcp.flags |= f }) }
	return []glueRow{
		{name: "a gap", with: at(2, func(b *build) { b.skip = 1000 }), want: []int{2, 3}},
		{name: "the same again", with: at(2, func(b *build) { b.skip = ^uint32(999) }),
			want: []int{2, 3}},
		{name: "PSH on the last", with: flags(4, tcpPSH), want: []int{5}},
		{name: "PSH in the middle", with: flags(2, tcpPSH), want: []int{3, 2}},
		{name: "PSH on the first", with: flags(0, tcpPSH), want: []int{1, 4}},
		{name: "FIN on the last", with: flags(4, tcpFIN|tcpPSH), want: []int{5}},
		{name: "FIN in the middle", with: flags(2, tcpFIN), want: []int{3, 2}},
		{name: "FIN on the first", with: flags(0, tcpFIN), want: []int{1, 4}},
		{name: "SYN", with: flags(2, tcpSYN), want: []int{2, 1, 2}},
		{name: "RST", with: flags(2, tcpRST), want: []int{2, 1, 2}},
		{name: "URG", with: flags(2, tcpURG), want: []int{2, 1, 2}},
		{name: "URG, all", with: func(b *build) { b.tcp.flags |= tcpURG },
			want: []int{1, 1, 1, 1, 1}},
		{name: "CWR", with: flags(2, tcpCWR), want: []int{2, 1, 2}},
		{name: "CWR on the first", with: flags(0, tcpCWR), want: []int{1, 4}},
		{name: "CWR, all", with: func(b *build) { b.tcp.flags |= tcpCWR },
			want:    []int{1, 1, 1, 1, 1},
			differs: "glues it since 6.18 and notes that CWR is on all (accurate ECN), which virtio_net's header cannot"},
		{name: "ECE", with: flags(2, tcpECE), want: []int{2, 1, 2}},
		{name: "ECE, all", with: func(b *build) { b.tcp.flags |= tcpECE }, want: []int{5}},
		{name: "another acknowledgement", with: at(2, func(b *build) { b.tcp.ack++ }),
			want: []int{2, 1, 2}},
		{name: "another window", with: at(2, func(b *build) { b.tcp.window++ }),
			want: []int{2, 1, 2}},
		{name: "another timestamp",
			with: at(2, func(b *build) { b.tcp.options = timestamps(2, 2) }), want: []int{2, 1, 2}},
		{name: "more options",
			with: at(2, func(b *build) { b.tcp.options = append(timestamps(1, 2), 1, 1, 1, 1) }),
			want: []int{2, 1, 2}},
		{name: "reserved bits", after: func(i int, ip []byte) {
			if th := len(ip) - 1032; i == 2 {
				ip[th+12] |= 1
				ip[th+16] -= 1 // of the checksum
			}
		}, want: []int{2, 1, 2}},
	}
}

func udpRows() []glueRow {
	port := func(at int) func(int, []byte) {
		return func(i int, ip []byte) {
			if th := len(ip) - 1008; i == 2 {
				ip[th+at]-- // the port
				ip[th+6]++  // and the checksum
				if ip[th+6] == 0 {
					panic("carry")
				}
			}
		}
	}
	return []glueRow{
		{name: "another source port", apart: true, after: port(0), want: []int{2, 1, 2}},
		{name: "no checksum", only: 4, after: func(i int, ip []byte) { clear(ip[26:28]) },
			want: []int{1, 1, 1, 1, 1}},
	}
}

func TestGlueAsLinux(t *testing.T) {
	m := newMerger(t)
	for _, udp := range []bool{false, true} {
		rows := append(both(), tcpRows()...)
		if udp {
			rows = append(both(), udpRows()...)
		}
		for _, row := range rows {
			for _, family := range []int{4, 6} {
				if row.only != 0 && row.only != family {
					continue
				}
				t.Run(fmt.Sprintf("%s, IPv%d, UDP %v", row.name, family, udp), func(t *testing.T) {
					judge := m
					if row.differs != "" || row.apart && udp && family == 6 {
						judge = nil
					}
					compareGlue(t, judge, row, row.packets(family == 6, udp))
				})
			}
		}
	}
}

func compareGlue(t *testing.T, m *merger, row glueRow, packets [][]byte) {
	t.Helper()
	e, out := testEngine(t, testSA)
	got := glued(e, out, packets)
	var counts []int
	for _, f := range got {
		_, m, _ := split(f)
		counts = append(counts, int(m.count))
	}
	if !slices.Equal(counts, row.want) {
		t.Errorf("glued %v, want %v", counts, row.want)
	}
	if m == nil {
		return
	}
	var difference string
	for range 20 { // a tick of the clock parts packets
		if difference = differ(got, m.merge(packets)); difference == "" {
			return
		}
	}
	t.Errorf("Linux: %s", difference)
}

// differ says in what frames differ from Linux's, but for their order: there, what cannot be glued
// to anything overtakes what waits.
func differ(got, linux [][]byte) string {
	for _, frames := range [][][]byte{got, linux} {
		slices.SortFunc(frames,
			func(a, b []byte) int { return bytes.Compare(a[headLen:], b[headLen:]) })
	}
	if len(got) != len(linux) {
		return fmt.Sprintf("%d frames, not %d", len(linux), len(got))
	}
	for i := range got {
		v, _, ip := split(got[i])
		w, _, theirs := split(linux[i])
		w.hdr = v.hdr // how much of the packet is linear: the first one, whole
		if v != w || !bytes.Equal(ip, theirs) {
			return fmt.Sprintf("frame %d\n     got %+v % x\n   Linux %+v % x", i, v,
				ip[:min(72, len(ip))], w, theirs[:min(72, len(theirs))])
		}
	}
	return ""
}
