package datapath

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/inet"
)

// traceSourcePort is the source port of traced TCP and UDP packets.
const traceSourcePort = 54321

// Trace crafts the first packet of a conversation from an endpoint and runs the from_pod program on
// it: the same code on the live maps, loaded a second time with tracing on, so that it notes its
// decisions and counts, remembers and sends nothing.
func (d *Datapath) Trace(ep Endpoint, dst netip.AddrPort, proto uint8) (*Trace, error) {
	src := ep.IPv4
	if dst.Addr().Is6() {
		src = ep.IPv6
	}
	if !src.IsValid() {
		return nil, fmt.Errorf("the endpoint has no address of the family of %s", dst.Addr())
	}
	packet, err := craft(ep, netip.AddrPortFrom(src, traceSourcePort), dst, proto)
	if err != nil {
		return nil, err
	}
	// On the XDP datapath a pod's stack sends by the TC side.
	object, xdp := "from_pod_tc", d.mode.Active == ModeXDP
	if xdp {
		object = "from_pod_xdp"
	}
	constants := d.constants()
	constants["weft_tracing"] = uint8(1)
	collection, err := bpf.Load(d.maps, object, "weft_from_pod", constants, false)
	if err != nil {
		return nil, err
	}
	defer collection.Close()
	// One trace at a time: the steps go to one shared entry.
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.maps.Trace.Put(uint32(0), &bpf.Trace{}); err != nil {
		return nil, fmt.Errorf("clear trace map: %w", err)
	}
	if err := d.runTraced(collection.Programs["weft_from_pod"], ep, packet, xdp); err != nil {
		return nil, err
	}
	var steps bpf.Trace
	if err := d.maps.Trace.Lookup(uint32(0), &steps); err != nil {
		return nil, fmt.Errorf("read trace map: %w", err)
	}
	return d.explain(&steps), nil
}

// xdpContext and skbContext are the parts of struct xdp_md and struct __sk_buff that BPF_PROG_RUN
// reads.
type xdpContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex,
	EgressIfindex uint32
}

type skbContext struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTCI, VlanProto, Priority uint32
	IngressIfindex, Ifindex, TCIndex                                                      uint32
	CB                                                                                    [5]uint32
	Hash, TCClassid, Data, DataEnd, NapiID, Family, RemoteIP4, LocalIP4                   uint32
	RemoteIP6, LocalIP6                                                                   [4]uint32
	RemotePort, LocalPort, DataMeta, FlowKeysLow, FlowKeysHigh                            uint32
	Tstamp                                                                                uint64
	WireLen, GSOSegs, SkLow, SkHigh, GSOSize, TstampType                                  uint32
	HWTstamp                                                                              uint64
}

func (d *Datapath) runTraced(program *ebpf.Program, ep Endpoint, packet []byte, xdp bool) error {
	host, err := netlink.LinkByName(ep.HostIf)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", ep.HostIf, err)
	}
	index := uint32(host.Attrs().Index)
	options := &ebpf.RunOptions{Data: packet, Repeat: 1}
	if xdp {
		options.Context = &xdpContext{DataEnd: uint32(len(packet)), IngressIfindex: index}
	} else {
		options.Context = &skbContext{Ifindex: index}
	}
	if _, err := program.Run(options); err != nil {
		return fmt.Errorf("run the traced program: %w", err)
	}
	return nil
}

// craft builds the smallest valid first packet: an echo request, a SYN, or an empty datagram.
func craft(ep Endpoint, src, dst netip.AddrPort, proto uint8) ([]byte, error) {
	p := inet.Packet{
		SrcMAC: ep.MAC, DstMAC: ep.GatewayMAC, Src: src.Addr(), Dst: dst.Addr(),
		TTL: inet.DefaultTTL, Fragment: inet.DontFragment,
	}
	switch proto {
	case unix.IPPROTO_TCP:
		header := inet.TCPHeader{SrcPort: src.Port(), DstPort: dst.Port(), Flags: inet.SYN}
		return p.TCP(header, nil).Frame(), nil
	case unix.IPPROTO_UDP:
		return p.UDP(src.Port(), dst.Port(), nil).Frame(), nil
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return p.Echo(0, 0, nil).Frame(), nil
	}
	return nil, fmt.Errorf("protocol %d: want tcp, udp or icmp", proto)
}

// explain turns the recorded steps into words.
func (d *Datapath) explain(t *bpf.Trace) *Trace {
	out := &Trace{}
	for _, s := range t.Steps[:min(int(t.N), len(t.Steps))] {
		name, detail := d.explainStep(s, out)
		step := TraceStep{Hook: bpf.HookNames.Of(s.Hook), Step: name, Detail: detail}
		if s.Step == bpf.StepPolicy {
			step.Policy = tracePolicy(s)
		}
		out.Steps = append(out.Steps, step)
	}
	return out
}

func (d *Datapath) explainStep(s bpf.TraceStep, out *Trace) (name, detail string) {
	switch s.Step {
	case bpf.StepParsed:
		return "parse", fmt.Sprintf("IPv%d, protocol %d, ports %d > %d", s.A, s.B, s.C>>16,
			s.C&0xffff)
	case bpf.StepMalformed:
		return "parse", bpf.Reason(s.A).Text()
	case bpf.StepEndpoint:
		return "endpoint", fmt.Sprintf("slot %d on %s", s.A, interfaceName(s.B))
	case bpf.StepSpoofOk:
		return "antispoof", "source MAC and IP are the endpoint's"
	case bpf.StepFlowHit:
		return "flow", "known, " +
			bpf.FlowStateNames.Of(uint8(s.A)) + viaStack(s.B&bpf.FlowViaStack != 0)
	case bpf.StepFlowNew:
		return "flow", "new" + viaStack(s.A != 0)
	case bpf.StepCacheHit:
		return "flow", "cached decision: " + bpf.VerdictNames.Of(uint8(s.A))
	case bpf.StepToLocal:
		out.NextHop = interfaceName(s.B)
		return "route", fmt.Sprintf("endpoint on this node, slot %d, %s", s.A, out.NextHop)
	case bpf.StepToNode:
		out.NextHop = d.hops.NameOf(s.A)
		return "route", fmt.Sprintf("pod range of node %s, by %s", out.NextHop, interfaceName(s.B))
	case bpf.StepSeal:
		return "seal", fmt.Sprintf("for node %s with the keys of epoch %d, as identity %d",
			d.hops.NameOf(s.A), s.B, s.C)
	case bpf.StepNoNeighbor:
		return "neighbour", "not resolved: the stack sends this packet and resolves it"
	case bpf.StepNoRoute:
		return "route", "no endpoint and no pod range: the host's stack"
	case bpf.StepMtu:
		return "mtu", fmt.Sprintf("%d bytes of %d", s.A, s.B)
	case bpf.StepTtl:
		return "ttl", fmt.Sprintf("%d: runs out here", s.A)
	case bpf.StepPolicy:
		return "policy", explainPolicy(tracePolicy(s))
	case bpf.StepVerdict:
		out.Verdict = bpf.VerdictNames.Of(uint8(s.A))
		if s.B != 0 {
			out.Reason = bpf.Reason(s.B).String()
			return "verdict", out.Verdict + ": " + bpf.Reason(s.B).Text()
		}
		if s.C != 0 {
			out.OutIf = interfaceName(s.C)
			return "verdict", out.Verdict + ", out of " + out.OutIf
		}
		return "verdict", out.Verdict
	}
	return fmt.Sprintf("step_%d", s.Step), fmt.Sprint(s.A, s.B, s.C)
}

func tracePolicy(s bpf.TraceStep) *TracePolicy {
	return &TracePolicy{Direction: bpf.DirectionNames.Of(uint8(s.A)), Identity: s.B, Rule: s.C >> 1,
		Allowed: s.C&1 != 0}
}

func explainPolicy(p *TracePolicy) string {
	verdict, rule := "denied", "no rule"
	if p.Allowed {
		verdict = "allowed"
	}
	if p.Rule != 0 {
		rule = fmt.Sprintf("rule %d", p.Rule)
	}
	return fmt.Sprintf("%s, peer's identity %d: %s by %s", p.Direction, p.Identity, verdict, rule)
}

func viaStack(yes bool) string {
	if yes {
		return ", kept on the stack's path"
	}
	return ""
}

func interfaceName(index uint32) string {
	if i, err := net.InterfaceByIndex(int(index)); err == nil {
		return i.Name
	}
	return fmt.Sprintf("interface %d", index)
}
