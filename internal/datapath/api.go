// Package datapath loads Weft's BPF programs, attaches them with pinned links,
// and keeps the maps they read. It knows packets and interfaces, not pods: what an
// endpoint is called and why it exists is package endpoint's business.
package datapath

import (
	"net"
	"net/netip"

	"weft.dev/weft/internal/datapath/flowtable"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/datapath/nexthop"
)

// MaxEndpoints is how many endpoints one node can hold; slot 0 is the node itself.
const MaxEndpoints = 4096

// Mode is how a node's datapath is hooked.
type Mode string

// The modes. ModeAuto is ModeTC with the XDP datapath for endpoints that ask for it.
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
	// XDPDatapath asks for native XDP on the endpoint's interface and a second one, with TC, for what its
	// stack sends; see Datapath.PodDatapath for what it gets.
	XDPDatapath bool
}

// PodDatapath is how packets get off an endpoint's interface, and why so.
type PodDatapath struct {
	Name string `json:"name"` // xdp, tc or stack
	Why  string `json:"why"`
	// Refused says that the endpoint asks for the XDP datapath and cannot have it.
	Refused bool `json:"refused,omitempty"`
}

// RouteProtocol marks the kernel routes that Weft makes.
const RouteProtocol = nexthop.RouteProtocol

// What is known of other nodes, see package nexthop.
type (
	Node        = nexthop.Node
	NodeProblem = nexthop.NodeProblem
	Inherited   = nexthop.Inherited
)

// What the flow table holds, see package flowtable.
type (
	Traffic    = flowtable.Traffic
	Counter    = flowtable.Counter
	Budget     = flowtable.Budget
	Flow       = flowtable.Flow
	FlowEvent  = flowtable.Event
	EventType  = flowtable.EventType
	EventStats = flowtable.EventStats
)

// The event types.
const (
	EventNew  = flowtable.EventNew
	EventEnd  = flowtable.EventEnd
	EventDrop = flowtable.EventDrop
)

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
	// XDPDatapath says whether endpoints that ask for the XDP datapath get it.
	XDPDatapath bool `json:"xdpDatapath"`
}
