// Package flowtable reads and keeps what the programs note of traffic: flows and the budgets of
// those who have them, counters, and events.
package flowtable

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

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

// Event is one record from the datapath's ring buffer.
type Event struct {
	Time      time.Time      `json:"time"`
	Type      EventType      `json:"type"`
	Verdict   string         `json:"verdict"`
	Reason    string         `json:"reason,omitempty"`
	Hook      string         `json:"hook"`
	Slot      uint16         `json:"slot"`              // the local endpoint, 0 for none
	Network   uint32         `json:"network,omitempty"` // whose addresses Src and Dst are; 0: the cluster's
	Direction string         `json:"direction"`         // egress or ingress, seen from that endpoint
	Src       netip.AddrPort `json:"src"`
	Dst       netip.AddrPort `json:"dst"`
	Protocol  uint8          `json:"protocol"`            // IP protocol number
	EtherType uint16         `json:"etherType,omitempty"` // of frames that are not IP, or could not be read as such
	TCPFlags  uint8          `json:"tcpFlags,omitempty"`
	Rule      uint32         `json:"rule,omitempty"` // the policy rule that refused it
	Length    uint32         `json:"length"`         // bytes of the frame that caused the event
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
	Network  uint32         `json:"network,omitempty"` // whose addresses Src and Dst are; 0: the cluster's
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

// Budget is what one endpoint holds of the tables that all share, and what its share refused it.
// What an endpoint began itself (egress) and what others began towards it (ingress) have a budget
// each.
type Budget struct {
	Slot      uint16 `json:"slot"`
	Direction string `json:"direction"`
	// Flows is how many flows it holds now.
	Flows uint32 `json:"flows"`
	// FlowsEvicted gave way to new ones before their time, FlowsRefused were not remembered.
	FlowsEvicted uint64 `json:"flowsEvicted"`
	FlowsRefused uint64 `json:"flowsRefused"`
	// FragmentsEvicted are datagrams forgotten before their fragments can have come.
	FragmentsEvicted uint64 `json:"fragmentsEvicted"`
	// EventsSuppressed and ErrorsSuppressed (ICMP) are events and errors that were not sent.
	EventsSuppressed uint64 `json:"eventsSuppressed"`
	ErrorsSuppressed uint64 `json:"errorsSuppressed"`
}

// Lost says which traffic the budget cost its endpoint: flows and fragments. "" when none.
func (b Budget) Lost() string {
	var parts []string
	for _, part := range []struct {
		count uint64
		what  string
	}{{b.FlowsEvicted, "flows evicted"}, {b.FlowsRefused, "flows not remembered"},
		{b.FragmentsEvicted, "fragmented datagrams forgotten"}} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.count, part.what))
		}
	}
	return strings.Join(parts, ", ")
}
