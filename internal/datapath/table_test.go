package datapath

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath/bpf"
)

// row is one packet and everything that must become of it, in both contexts.
type row struct {
	name  string
	hook  string // from_pod unless set
	iface string // where it comes in; pod A's or the uplink unless set
	setup func(t *testing.T, b *harness)
	in    packet
	cut   int    // length that the frame is cut to, if not 0
	want  string // pass, drop or redirect; pass and drop leave the frame alone unless out is set
	// reason is the drop's, as counted; a "time exceeded" is a redirect with a reason.
	reason bpf.Reason
	// out checks the frame after the program. Without it, pass and drop must leave it unchanged.
	out func(in, out []byte) error
	// counts are all counters after one packet; nil checks only the reason.
	counts []string
	only   string // context, for what the other cannot see; why says why
	why    string
	once   bool // a second packet meets another state
}

func fromA(dst netip.Addr) packet { return newPacket(podA.MAC, gatewayMAC, addrOf(podA, dst), dst) }
func fromB(dst netip.Addr) packet { return newPacket(podB.MAC, gatewayMAC, addrOf(podB, dst), dst) }

// fromPeer is what a pod of the peer node sends, as it arrives on the uplink.
func fromPeer(dst netip.Addr) packet {
	src := peer4
	if dst.Is6() {
		src = peer6
	}
	return newPacket(peerMAC, uplinkMAC, src, dst)
}

func addrOf(ep Endpoint, like netip.Addr) netip.Addr {
	if like.Is6() {
		return ep.IPv6
	}
	return ep.IPv4
}

func routedTo(smac, dmac net.HardwareAddr) func(in, out []byte) error {
	return func(in, out []byte) error { return wantRouted(in, out, smac, dmac) }
}

var (
	toPeer = routedTo(uplinkMAC, peerMAC)
	toB    = routedTo(gatewayMAC, podB.MAC)
	toA    = routedTo(gatewayMAC, podA.MAC)
)

func runTable(t *testing.T, rows []row) {
	t.Helper()
	b := newHarness(t)
	for _, r := range rows {
		for _, context := range contexts {
			if r.only != "" && r.only != context || strings.HasPrefix(r.hook, "to_") &&
				context == "xdp" {
				continue
			}
			t.Run(r.name+"/"+context, func(t *testing.T) { r.run(t, b, context) })
		}
	}
}

func (r row) run(t *testing.T, b *harness, context string) {
	b.reset(t)
	if r.setup != nil {
		r.setup(t, b)
	}
	if r.hook == "" {
		r.hook = "from_pod"
	}
	if r.iface == "" {
		r.iface = ifaceFor(r.hook)
	}
	in := r.in.bytes()
	if r.cut != 0 {
		in = in[:r.cut]
	}
	before := b.counted(t)
	verdict, out := b.send(t, context, r.hook, r.iface, in)
	problems := r.problems(in, out, verdict, subtract(b.counted(t), before))
	if !r.once && len(problems) == 0 {
		again, outAgain := b.send(t, context, r.hook, r.iface, in)
		if again != verdict || !bytes.Equal(out, outAgain) {
			problems = append(problems, "second packet: "+again+", first: "+verdict)
		}
	}
	for _, p := range problems {
		t.Error(p)
	}
}

func (r row) problems(in, out []byte, verdict string, counts []string) (list []string) {
	if verdict != r.want {
		list = append(list, "verdict "+verdict+", want "+r.want)
	}
	if got, want := reasonsIn(counts), []string{r.reason.String()}; r.reason == bpf.ReasonNone &&
		got != nil || r.reason != bpf.ReasonNone && !slices.Equal(got, want) {
		list = append(list, "drop reasons "+strings.Join(got, ",")+", want "+r.reason.String())
	}
	if r.counts != nil && !slices.Equal(sorted(counts), sorted(r.counts)) {
		list = append(list,
			"counters "+strings.Join(counts, ", ")+"; want "+strings.Join(r.counts, ", "))
	}
	if verdict != r.want {
		return list
	}
	if r.out != nil {
		if err := r.out(in, out); err != nil {
			list = append(list, err.Error())
		}
	} else if !bytes.Equal(in, out) {
		list = append(list, "the frame was changed")
	}
	return list
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// subtract leaves out the counters that setup had already moved; rows whose setup moves the
// same counter name its total.
func subtract(after, before []string) []string {
	return slices.DeleteFunc(after, func(s string) bool { return slices.Contains(before, s) })
}

// reasonsIn picks the drop reasons out of a list of counters.
func reasonsIn(counts []string) (labels []string) {
	for _, c := range counts {
		what := strings.Fields(c)[2]
		if !slices.Contains(bpf.VerdictNames, what) {
			labels = append(labels, what)
		}
	}
	return labels
}

// after sends packets one after the other and wants each forwarded: the state that a row starts
// from.
func after(hook string, packets ...packet) func(*testing.T, *harness) {
	return func(t *testing.T, b *harness) {
		t.Helper()
		for i, p := range packets {
			if v, _ := b.send(t, "tc", hook, ifaceFor(hook), p.bytes()); v == "drop" {
				t.Fatalf("packet %d of the setup was dropped", i)
			}
		}
	}
}

func both(setups ...func(*testing.T, *harness)) func(*testing.T, *harness) {
	return func(t *testing.T, b *harness) {
		for _, s := range setups {
			s(t, b)
		}
	}
}

// TestPlainIsTold: what may be plain is read back from what the programs read.
func TestPlainIsTold(t *testing.T) {
	b := newSealHarness(t, 4)
	for _, texts := range [][]string{
		{"0.0.0.0/0", "10.9.0.0/16", "10.9.1.1/32", "::/0", "::/96", "fd77::/64", "fd77::1/128"},
		{"10.9.1.1/32"}, nil,
	} {
		var want []netip.Prefix
		for _, text := range texts {
			want = append(want, netip.MustParsePrefix(text))
		}
		must(t, b.SetPlain(want))
		got, err := b.Plain()
		if must(t, err); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}
