// Package datapath loads Weft's BPF programs, attaches them with pinned links,
// and keeps the maps they read. It knows packets and interfaces, not pods: what an
// endpoint is called and why it exists is package endpoint's business.
package datapath

import (
	"net"
	"net/netip"
	"time"

	"weft.dev/weft/internal/datapath/hook"
)

// MaxEndpoints is how many endpoints one node can hold; slot 0 is the node itself.
const MaxEndpoints = 4096

// Mode is how a node's datapath is hooked.
type Mode string

// The modes. ModeAuto is ModeTC with the XDP road for endpoints that ask for it.
const (
	ModeAuto  Mode = "auto"
	ModeXDP   Mode = "xdp"
	ModeTC    Mode = "tc"
	ModeStack Mode = "stack"
)

// Endpoint is one workload interface as the datapath sees it.
type Endpoint struct {
	// Slot is the endpoint's index in per-endpoint arrays, 1 to MaxEndpoints-1,
	// owned by the caller for as long as the endpoint is attached.
	Slot uint16
	// HostIf is the name of the interface's host side; it also names the pins.
	HostIf string
	// NetNS is the path of the pod's network namespace, PodIf the interface in it.
	NetNS string
	PodIf string
	// MAC is the pod side's address, GatewayMAC the one the pod sends to.
	MAC        net.HardwareAddr
	GatewayMAC net.HardwareAddr
	// IPv4 and IPv6 are the only source addresses the endpoint may use; either may be invalid (absent).
	IPv4 netip.Addr
	IPv6 netip.Addr
	// MTU is the largest IP packet the pod's interface takes, in bytes.
	MTU int
	// Identity is who the endpoint is to other nodes (22 bits), 0 if nobody has said.
	Identity uint32
	// Chained marks an interface that another CNI plugin made (bridge, ptp): ARP and ND
	// beyond the gateway go to the stack and the interface's own settings stay.
	Chained bool
	// XDPRoad asks for native XDP on the endpoint's interface and a second one, with TC, for what its
	// stack sends; see Datapath.Road for what it gets.
	XDPRoad bool
}

// Road is how packets get off an endpoint's interface, and why so.
type Road struct {
	Name string `json:"name"` // xdp, tc or stack
	Why  string `json:"why"`
	// Refused says that the endpoint asks for the XDP road and cannot have it.
	Refused bool `json:"refused,omitempty"`
}

// Node is a peer whose pods are reached over the wire.
type Node struct {
	Name      string
	Addresses []netip.Addr
	// PodCIDRs are the ranges, and single addresses as ranges of one, that its pods have.
	PodCIDRs []netip.Prefix
	// Missing says that addresses and ranges are the cluster's and no known node's: nothing goes there in either way,
	// and nothing is taken from there. Such a node may have the name of another in the list, or none.
	Missing bool
}

// Traffic counts packets and the bytes of their frames.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Counter is one endpoint's traffic by direction and verdict.
// Reason is empty unless Verdict is "drop".
type Counter struct {
	Slot      uint16 `json:"slot"`
	Direction string `json:"direction"` // "egress" or "ingress"
	Verdict   string `json:"verdict"`
	Reason    string `json:"reason,omitempty"`
	Traffic
}

// EventType says why a flow event was written.
type EventType string

// The event types.
const (
	EventNew  EventType = "new"
	EventEnd  EventType = "end"
	EventDrop EventType = "drop"
)

// FlowEvent is one record from the datapath's ring buffer.
type FlowEvent struct {
	Time      time.Time      `json:"time"`
	Type      EventType      `json:"type"`
	Verdict   string         `json:"verdict"`
	Reason    string         `json:"reason,omitempty"`
	Hook      string         `json:"hook"`      // from_pod, from_wire, to_pod, to_wire, from_host
	Slot      uint16         `json:"slot"`      // the local endpoint, 0 for none
	Direction string         `json:"direction"` // egress or ingress, seen from that endpoint
	Src       netip.AddrPort `json:"src"`
	Dst       netip.AddrPort `json:"dst"`
	Protocol  uint8          `json:"protocol"`            // IP protocol number
	EtherType uint16         `json:"etherType,omitempty"` // of frames that are not IP, or could not be read as such
	TCPFlags  uint8          `json:"tcpFlags,omitempty"`
	Length    uint32         `json:"length"` // bytes of the frame that caused the event
	// Forward and Reply are the flow's totals, set on EventEnd.
	Forward Traffic `json:"forward"`
	Reply   Traffic `json:"reply"`
}

// EventStats says what the ring buffer could not carry.
type EventStats struct {
	// Suppressed were held back by the rate limit, Lost found the buffer full.
	Suppressed uint64 `json:"suppressed"`
	Lost       uint64 `json:"lost"`
}

// Flow is one row of the flow table.
type Flow struct {
	Src      netip.AddrPort `json:"src"`
	Dst      netip.AddrPort `json:"dst"`
	Protocol uint8          `json:"protocol"`
	State    string         `json:"state"`
	Age      time.Duration  `json:"age"`  // since the first packet
	Idle     time.Duration  `json:"idle"` // since the last packet
	ViaStack bool           `json:"viaStack"`
	Forward  Traffic        `json:"forward"`
	Reply    Traffic        `json:"reply"`
}

// TraceStep is one decision of a traced packet, in order.
type TraceStep struct {
	Hook   string `json:"hook"`
	Step   string `json:"step"`   // parse, antispoof, flow, route, mtu, verdict…
	Detail string `json:"detail"` // for people
}

// Trace is what the live programs decided on a crafted packet.
type Trace struct {
	Steps   []TraceStep `json:"steps"`
	Verdict string      `json:"verdict"`
	Reason  string      `json:"reason,omitempty"`
	OutIf   string      `json:"outInterface,omitempty"`
	NextHop string      `json:"nextHop,omitempty"` // peer node or endpoint interface
}

// LinkStatus is one attached hook.
type LinkStatus = hook.Status

// ModeStatus says which mode runs and why.
type ModeStatus struct {
	Asked  Mode   `json:"asked"`
	Active Mode   `json:"active"`
	Why    string `json:"why"`
	// XDPRoad says whether endpoints that ask for the XDP road get it.
	XDPRoad bool `json:"xdpRoad"`
}
