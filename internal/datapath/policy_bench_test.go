package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/policymap"
)

// cpuTime is what this process has used, in nanoseconds: others may run on the machine.
func cpuTime(t testing.TB) int64 {
	var usage unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// BenchmarkPolicy is the slow path of a SYN to this host, which from_pod judges and hands on
// unchanged: without a policy, and with a set of that many entries. What policy costs is the
// difference; ns/packet is the best of all runs.
func BenchmarkPolicy(bm *testing.B) {
	b := newHarness(bm)
	for _, n := range []int{-1, 0, 10, 1000, 10000} {
		for _, own := range []netip.Addr{node4, node6} {
			bm.Run(fmt.Sprintf("entries=%d/%s", n, own), func(bm *testing.B) {
				b.reset(bm)
				key := bpf.RouteKeyOf(netip.PrefixFrom(own, own.BitLen()))
				must(bm, b.maps.Routes.Put(&key, &bpf.Route{Flags: bpf.RouteHost}))
				a := podA
				must(bm, b.SetClasses(nil))
				if n >= 0 {
					entries := []PolicyEntry{{Direction: policymap.Egress, Peer: bpf.IdentityHost,
						Protocol: tcp, Port: 80, PortBits: 16, Allow: true}}
					for i := range n {
						entries = append(entries,
							PolicyEntry{Direction: policymap.Egress, Peer: 1000 + uint32(i),
								Protocol: tcp, Port: 80, PortBits: 16, Allow: true})
					}
					set, err := b.AddPolicySet(entries)
					must(bm, err)
					a.EgressSet = set
				}
				must(bm, b.putEndpoint(a, []int{b.index["wta"]}))
				frame := fromA(own).tcp(1000, 80, syn, 0).bytes()
				options := &ebpf.RunOptions{Data: frame, Repeat: 10000,
					Context: &xdpContext{DataEnd: uint32(len(frame)),
						IngressIfindex: uint32(b.index["wta"])}}
				best := int64(1 << 62)
				for bm.Loop() {
					began := cpuTime(bm)
					must(bm,
						b.inside(func() error { _, err := b.program("xdp", "from_pod").Run(options); return err }))
					best = min(best, cpuTime(bm)-began)
				}
				bm.ReportMetric(float64(best)/float64(options.Repeat), "ns/packet")
			})
		}
	}
}
