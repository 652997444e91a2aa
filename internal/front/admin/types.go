// Package admin is the agent's API for people and tools on the same machine: HTTP and
// JSON on a unix socket that only root can open.
//
// Every answer is JSON. A refused request is answered with {"error": "…"}: a sentence
// that says what is wrong and, where that is known, what to do.
package admin

import (
	"context"
	"encoding/json"
	"net/netip"
	"time"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/store"
)

// Status is the agent's own account of itself.
type Status struct {
	Node     string    `json:"node"`
	Instance string    `json:"instance,omitempty"`
	Version  string    `json:"version"`
	Kernel   string    `json:"kernel"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	// Ready says whether the datapath has been synchronised once; Waiting is what for if not.
	Ready   bool   `json:"ready"`
	Waiting string `json:"waiting,omitempty"`
	// Problems are what does not work although the agent runs.
	Problems []string `json:"problems,omitempty"`
	// OverBudget names who lost flows or fragments to its own share of the tables, since it is
	// attached.
	OverBudget []string `json:"overBudget,omitempty"`
	// Notes are the latest changes by others to the host that were put in order, oldest first.
	Notes     []datapath.Note     `json:"notes,omitempty"`
	Mode      datapath.ModeStatus `json:"mode"`
	Addresses []netip.Addr        `json:"addresses,omitempty"`
	PodCIDRs  []netip.Prefix      `json:"podCIDRs,omitempty"`
	Uplinks   []string            `json:"uplinks,omitempty"`
	// MTU is the pods', UplinkMTU the smallest of the uplinks'.
	MTU       int `json:"mtu,omitempty"`
	UplinkMTU int `json:"uplinkMTU,omitempty"`
	Endpoints int `json:"endpoints"`
	// XDPDatapaths are the endpoints that have the XDP datapath because they asked for it.
	XDPDatapaths int                   `json:"xdpDatapaths"`
	Nodes        int                   `json:"nodes"`
	Links        []datapath.LinkStatus `json:"links,omitempty"`
	// Encryption is one line on how packets between nodes travel; /v1/encrypt tells all.
	Encryption string `json:"encryption,omitempty"`
	// NoNode is what is the cluster's and no known node's: nothing goes there or comes from there.
	NoNode []NoNode    `json:"noNode,omitempty"`
	Store  StoreStatus `json:"store"`
	Events EventStatus `json:"events"`
	Paths  Paths       `json:"paths"`
}

// NoNode is a range or an address of the cluster whose node is not known.
type NoNode struct {
	Prefix netip.Prefix `json:"prefix"`
	// Kind is range, address (of a node) or endpoint (a pod's address outside of ranges).
	Kind  string    `json:"kind"`
	Node  string    `json:"node,omitempty"`
	Since time.Time `json:"since"`
	Why   string    `json:"why,omitempty"`
}

// StoreStatus is where the objects come from and which of them are wrong.
type StoreStatus struct {
	config.Store
	Errors []store.ObjectError `json:"errors,omitempty"`
}

// EventStatus says how the flow log fares.
type EventStatus struct {
	datapath.EventStats
	Seen      uint64 `json:"seen"`
	Followers int    `json:"followers"`
	// FollowersLost were not delivered to followers that were too slow.
	FollowersLost uint64 `json:"followersLost"`
	LogFile       string `json:"logFile,omitempty"`
}

// Paths are the directories and files of this instance.
type Paths struct {
	Socket string `json:"socket"`
	State  string `json:"state"`
	BPF    string `json:"bpf"`
	NetNS  string `json:"netns"`
}

// Endpoint is one workload interface of this node, with what passed it.
type Endpoint struct {
	ID             string            `json:"id"`
	Namespace      string            `json:"namespace,omitempty"`
	Pod            string            `json:"pod,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	// Identity is the number that other nodes know the endpoint's packets by, 0 while it has none.
	Identity    uint32     `json:"identity,omitempty"`
	ContainerID string     `json:"containerID"`
	IfName      string     `json:"ifName"`
	Slot        uint16     `json:"slot"`
	HostIf      string     `json:"hostIf"`
	NetNS       string     `json:"netns"`
	PodIf       string     `json:"podIf"`
	MAC         string     `json:"mac"`
	GatewayMAC  string     `json:"gatewayMAC"`
	IPv4        netip.Addr `json:"ipv4"`
	IPv6        netip.Addr `json:"ipv6"`
	// More are further addresses, Network is the one that all are of; 0 is the cluster's.
	More        []netip.Addr         `json:"more,omitempty"`
	Network     uint32               `json:"network,omitempty"`
	MTU         int                  `json:"mtu"`
	Chained     bool                 `json:"chained"`
	PodDatapath datapath.PodDatapath `json:"datapath"`
	State       string               `json:"state"`
	Created     time.Time            `json:"created"`
	Traffic     []CounterRow         `json:"traffic,omitempty"`
	// Budgets are what it holds of the tables that all endpoints share, and what its share refused
	// it.
	Budgets []datapath.Budget `json:"budgets,omitempty"`
}

// Name is "namespace/pod", or the endpoint's ID when no pod is known.
func (e Endpoint) Name() string {
	switch {
	case e.Pod == "":
		return e.ID
	case e.Namespace == "":
		return e.Pod
	}
	return e.Namespace + "/" + e.Pod
}

// CounterRow is what passed or was dropped in one direction.
type CounterRow struct {
	Direction string `json:"direction"`
	Verdict   string `json:"verdict"`
	Reason    string `json:"reason,omitempty"`
	datapath.Traffic
}

// Node is a node that the store declares.
type Node struct {
	Name      string         `json:"name"`
	Self      bool           `json:"self"`
	Addresses []netip.Addr   `json:"addresses"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs"`
	// Endpoints are those that the node has published.
	Endpoints int `json:"endpoints"`
}

// Drop is how often one reason dropped a packet.
type Drop struct {
	Reason string `json:"reason"`
	// Text says what happened, Hint what to look at.
	Text      string `json:"text"`
	Hint      string `json:"hint,omitempty"`
	Direction string `json:"direction,omitempty"`
	Endpoint  string `json:"endpoint,omitempty"`
	datapath.Traffic
}

// FlowQuery selects records of the flow log.
type FlowQuery struct {
	flows.Filter
	// Last is how many past records to begin with: 0 for all that are kept, negative for none.
	Last int `json:"last"`
	// Follow goes on with new records until the caller goes away.
	Follow bool `json:"follow"`
}

// TableFlow is one row of the flow table, with the names of both ends.
type TableFlow struct {
	// Network is the one that both addresses are of; 0 is the cluster's.
	Network     uint32           `json:"network,omitempty"`
	Source      flows.Peer       `json:"source"`
	Destination flows.Peer       `json:"destination"`
	Protocol    string           `json:"protocol"`
	State       string           `json:"state"`
	Age         string           `json:"age"`
	Idle        string           `json:"idle"`
	ViaStack    bool             `json:"viaStack"`
	Forward     datapath.Traffic `json:"forward"`
	Reply       datapath.Traffic `json:"reply"`
}

// ForgetRequest names what is to be forgotten.
type ForgetRequest struct {
	// What is a node's name or a range.
	What string `json:"what"`
}

// TraceRequest asks what the live programs would do with a packet.
type TraceRequest struct {
	// From is an endpoint's namespace/pod, pod or ID.
	From string `json:"from"`
	// To is ADDRESS:PORT, an IPv6 address in brackets.
	To string `json:"to"`
	// Protocol is a name or number; empty means tcp.
	Protocol string `json:"protocol,omitempty"`
}

// TraceResult is what the live programs decided.
type TraceResult struct {
	From     string `json:"from"`
	To       string `json:"to"`
	ToName   string `json:"toName,omitempty"`
	Protocol string `json:"protocol"`
	datapath.Trace
	ReasonText string `json:"reasonText,omitempty"`
	Hint       string `json:"hint,omitempty"`
}

// Dropped says whether the packet would be dropped.
func (r *TraceResult) Dropped() bool { return r.Reason != "" || r.Verdict == "drop" }

// Readiness is the answer of /v1/readyz.
type Readiness struct {
	Ready   bool   `json:"ready"`
	Waiting string `json:"waiting,omitempty"`
}

// Sysdump is everything that the agent knows, by the name of a file to put it in.
type Sysdump map[string]json.RawMessage

// Backend is what the server serves.
type Backend interface {
	Ready() Readiness
	Status(ctx context.Context) (*Status, error)
	Endpoints(ctx context.Context) ([]Endpoint, error)
	Nodes(ctx context.Context) ([]Node, error)
	// ForgetNode forgets what was lost of a node, by its name, or one lost range.
	ForgetNode(ctx context.Context, what string) ([]NoNode, error)
	// Flows calls send for each record. It returns when there are no more, send fails or ctx ends.
	Flows(ctx context.Context, query FlowQuery, send func(flows.Flow) error) error
	FlowTable(ctx context.Context, limit int) ([]TableFlow, error)
	// Drops lists what was dropped; all adds the reasons that never happened.
	Drops(ctx context.Context, all bool) ([]Drop, error)
	Trace(ctx context.Context, request TraceRequest) (*TraceResult, error)
	// Encrypt says how packets to other nodes are sealed, and with which keys.
	Encrypt(ctx context.Context) (*Encryption, error)
	Sysdump(ctx context.Context) (Sysdump, error)
	PolicyBackend
}

// StatusError is an error with an HTTP status of its own; other errors are 500.
type StatusError struct {
	Code int
	Msg  string
}

// Error is the sentence alone.
func (e *StatusError) Error() string { return e.Msg }
