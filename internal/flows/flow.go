// Package flows turns the datapath's events into flow records with names, keeps the
// last of them in memory, and hands them to whoever follows.
//
// Nothing here may slow the reader of the ring buffer down: a follower that does not
// keep up loses records and is told how many.
package flows

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/policy"
)

// Verdicts of a Flow, as Hubble writes them.
const (
	Forwarded = "FORWARDED"
	Dropped   = "DROPPED"
)

// Flow is one record of the flow log.
type Flow struct {
	Time time.Time `json:"time"`
	// Type says why the record was written: new, end or drop.
	Type datapath.EventType `json:"type"`
	// Verdict is FORWARDED or DROPPED, Action the datapath's own word for it.
	Verdict string `json:"verdict"`
	Action  string `json:"action,omitempty"`
	// DropReason is the reason's label, DropText the sentence for people.
	DropReason string `json:"drop_reason_desc,omitempty"`
	DropText   string `json:"drop_reason_text,omitempty"`
	// Policy is what refused the packet, if a policy did and it can be told which.
	Policy   *Refusal `json:"policy,omitempty"`
	NodeName string   `json:"node_name"`
	// Network is the one that both addresses are of; 0 is the cluster's.
	Network     uint32 `json:"network,omitempty"`
	Source      Peer   `json:"source"`
	Destination Peer   `json:"destination"`
	Protocol    string `json:"protocol"`
	TCPFlags    string `json:"tcp_flags,omitempty"`
	// Direction is EGRESS or INGRESS, seen from the local endpoint; Hook is the program that wrote
	// the event.
	Direction string `json:"traffic_direction"`
	Hook      string `json:"hook"`
	// IsReply is unknown (absent) for a dropped packet, which belongs to no flow.
	IsReply *bool `json:"is_reply,omitempty"`
	// Length is the size of the frame that caused the record.
	Length uint32 `json:"length"`
	// Forward and Reply are the flow's totals, when it has ended.
	Forward *datapath.Traffic `json:"forward,omitempty"`
	Reply   *datapath.Traffic `json:"reply,omitempty"`
	// Lost counts the records that this reader missed just before this one.
	Lost uint64 `json:"lost,omitempty"`
}

// Peer is one end of a flow. The names are empty when nobody knows the address.
type Peer struct {
	IP   netip.Addr `json:"ip"`
	Port uint16     `json:"port,omitempty"`
	Identity
}

// Refusal is the policy that refused a packet.
type Refusal struct {
	// Direction is EGRESS or INGRESS: the part of Pod, whose policies they are, in the
	// conversation. Where the packet is a reply, that is the other direction than the packet's.
	Direction string `json:"direction"`
	Pod       string `json:"pod"`
	// Peer is the identity of the other end, in words.
	Peer string `json:"peer"`
	// Policies are those about the pod in that direction, by kind and name.
	Policies []string `json:"policies,omitempty"`
	// Rule is the one that denies, nil where none allows.
	Rule *policy.Rule `json:"rule,omitempty"`
	Text string       `json:"text"`
}

// RefusalOf is what a policy has said as part of a flow.
func RefusalOf(h *policy.Half) *Refusal {
	return &Refusal{
		Direction: strings.ToUpper(h.Direction.String()), Pod: h.Pod, Peer: h.Peer,
		Policies: h.Policies, Rule: h.Rule, Text: h.String(),
	}
}

// Identity is who is behind an address.
type Identity struct {
	// Number is the workload identity's, 0 where it is not known.
	Number         uint32            `json:"identity,omitempty"`
	Namespace      string            `json:"namespace,omitempty"`
	Pod            string            `json:"pod,omitempty"`
	Node           string            `json:"node,omitempty"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
}

// Name is "namespace/pod", or the node's name for a node's own address, or empty.
func (i Identity) Name() string {
	switch {
	case i.Pod == "":
		return i.Node
	case i.Namespace == "":
		return i.Pod
	}
	return i.Namespace + "/" + i.Pod
}

// String is the peer for people: its name or its address, with the port if it has one.
func (p Peer) String() string {
	name := p.Name()
	switch {
	case name != "" && p.Port != 0:
		return name + ":" + strconv.Itoa(int(p.Port))
	case name != "":
		return name
	case p.Port != 0:
		return netip.AddrPortFrom(p.IP, p.Port).String()
	case !p.IP.IsValid():
		return "?"
	}
	return p.IP.String()
}

// String is the record as one line of `weft flows`.
func (f Flow) String() string {
	var line strings.Builder
	fmt.Fprintf(&line, "%s %-4s %-9s %-7s %s -> %s", f.Time.Local().Format("15:04:05.000"),
		f.Type, f.Verdict, f.Protocol, f.Source, f.Destination)
	if f.TCPFlags != "" {
		fmt.Fprintf(&line, " [%s]", f.TCPFlags)
	}
	if f.DropReason != "" {
		fmt.Fprintf(&line, " %s", f.DropReason)
		switch {
		case f.Policy != nil:
			fmt.Fprintf(&line, ": %s", f.Policy.Text)
		case f.DropText != "":
			fmt.Fprintf(&line, ": %s", f.DropText)
		}
	}
	if f.Forward != nil && f.Reply != nil {
		fmt.Fprintf(&line, " sent %d packets %d bytes, got %d packets %d bytes",
			f.Forward.Packets, f.Forward.Bytes, f.Reply.Packets, f.Reply.Bytes)
	}
	return line.String()
}

// etherTypes are the names of what is not IP, or too broken to be read as such.
var etherTypes = map[uint16]string{0x0800: "ipv4", 0x86dd: "ipv6", 0x0806: "arp", 0x8100: "vlan",
	0x88a8: "vlan", 0x88cc: "lldp"}

// protocolOf names the protocol of an event: the IP protocol, or the EtherType of what is not IP.
func protocolOf(event datapath.FlowEvent) string {
	if event.EtherType == 0 {
		return ProtocolName(event.Protocol)
	}
	if name := etherTypes[event.EtherType]; name != "" {
		return name
	}
	return fmt.Sprintf("0x%04x", event.EtherType)
}

// ProtocolName is an IP protocol's name, or its number where it has none here.
func ProtocolName(number uint8) string {
	return cmp.Or(inet.ProtocolName(number), strconv.Itoa(int(number)))
}

// ParseProtocol reads a protocol's name or number.
func ParseProtocol(text string) (uint8, error) {
	if number, known := inet.ProtocolNumber(strings.ToLower(text)); known {
		return number, nil
	}
	number, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("unknown protocol %q: use tcp, udp, icmp, icmpv6, sctp, udplite, or a number from 0 to 255", text)
	}
	return uint8(number), nil
}

var flagNames = []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"}

// TCPFlags names the bits of a TCP header's flags, such as "SYN,ACK".
func TCPFlags(bits uint8) string {
	var set []string
	for bit, name := range flagNames {
		if bits&(1<<bit) != 0 {
			set = append(set, name)
		}
	}
	return strings.Join(set, ",")
}
