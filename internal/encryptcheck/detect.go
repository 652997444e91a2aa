package encryptcheck

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
)

// maxFinds bounds the packets that a report quotes; all are counted.
const maxFinds = 16

// Rules say what must not be seen in cleartext.
type Rules struct {
	// Port is the UDP port of sealed packets, 0 for DefaultPort.
	Port uint16
	// Pods are the ranges of pods, Nodes the addresses of nodes: a packet between two of them,
	// at least one a pod's, must be sealed.
	Pods  []netip.Prefix
	Nodes []netip.Addr
	// Allowed are ranges that a policy lets travel in cleartext.
	Allowed []netip.Prefix
	// Marker must not be readable anywhere; nil looks for none.
	Marker []byte
}

// Kind is what a frame turned out to be.
type Kind int

// The kinds of frames.
const (
	// Sealed is ESP in UDP.
	Sealed Kind = iota
	// Other is IP that has nothing to do with pods: nodes among themselves, and with the world.
	Other
	// Outside is a pod's packet from or to something that is neither pod nor node: it is never
	// sealed.
	Outside
	// Allowed is plain, and a policy lets it be.
	Allowed
	// Plain is what should have been sealed.
	Plain
	// NotIP is ARP and the like.
	NotIP
	// Broken cannot be read.
	Broken
	kinds
)

var kindNames = [kinds]string{"sealed", "other", "outside", "allowed", "plain", "not IP", "broken"}

// String is the kind's name.
func (k Kind) String() string {
	if k < 0 || k >= kinds {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kindNames[k]
}

// Find is a packet that should not have been readable.
type Find struct {
	Interface string `json:"interface,omitempty"`
	// What is "plain" or "marker".
	What     string     `json:"what"`
	Src      netip.Addr `json:"src,omitzero"`
	Dst      netip.Addr `json:"dst,omitzero"`
	Protocol string     `json:"protocol,omitempty"`
	Length   int        `json:"length"`
}

// Report is what a detector has seen.
type Report struct {
	Frames uint64 `json:"frames"`
	// Sealed packets are ESP in UDP; SealedTo counts them by outer destination.
	Sealed   uint64                `json:"sealed"`
	SealedTo map[netip.Addr]uint64 `json:"sealedTo,omitempty"`
	// Plain packets should have been sealed; Markers had the marker in readable bytes.
	Plain   uint64 `json:"plain"`
	Markers uint64 `json:"markers"`
	// Allowed, Outside and Other packets are plain, and may be.
	Allowed uint64 `json:"allowed"`
	Outside uint64 `json:"outside"`
	Other   uint64 `json:"other"`
	NotIP   uint64 `json:"notIP"`
	Broken  uint64 `json:"broken"`
	// Finds are the first plain packets and markers.
	Finds []Find `json:"finds,omitempty"`
}

// Clean says whether nothing was readable that should not have been.
func (r *Report) Clean() bool { return r.Plain == 0 && r.Markers == 0 }

// Detector looks at frames and counts. It is for one goroutine.
type Detector struct {
	rules  Rules
	report Report
}

// NewDetector makes a detector that has seen nothing.
func NewDetector(rules Rules) *Detector {
	if rules.Port == 0 {
		rules.Port = DefaultPort
	}
	return &Detector{rules: rules, report: Report{SealedTo: map[netip.Addr]uint64{}}}
}

// Report is what was seen so far.
func (d *Detector) Report() Report {
	r := d.report
	r.SealedTo, r.Finds = cloneCounts(r.SealedTo), slices.Clone(r.Finds)
	return r
}

func cloneCounts(counts map[netip.Addr]uint64) map[netip.Addr]uint64 {
	out := make(map[netip.Addr]uint64, len(counts))
	for addr, n := range counts {
		out[addr] = n
	}
	return out
}

// Frame looks at one frame.
func (d *Detector) Frame(f Frame) Kind {
	d.report.Frames++
	p, err := inet.Parse(f.Data)
	if len(d.rules.Marker) > 0 && bytes.Contains(f.Data, d.rules.Marker) {
		d.report.Markers++
		d.find("marker", f, &p)
	}
	kind := Broken
	if err == nil || p.IP() {
		// A broken packet of a pod's is a pod's packet all the same.
		kind = d.kind(&p)
	}
	switch kind {
	case Sealed:
		d.report.Sealed++
		d.report.SealedTo[p.Dst]++
	case Plain:
		d.report.Plain++
		d.find("plain", f, &p)
	default:
		*[kinds]*uint64{Other: &d.report.Other, Outside: &d.report.Outside,
			Allowed: &d.report.Allowed, NotIP: &d.report.NotIP, Broken: &d.report.Broken}[kind]++
	}
	return kind
}

func (d *Detector) kind(p *inet.Headers) Kind {
	if !p.IP() {
		return NotIP
	}
	podSrc, podDst := within(d.rules.Pods, p.Src), within(d.rules.Pods, p.Dst)
	switch {
	case !podSrc && !podDst:
		return d.betweenOthers(p)
	case within(d.rules.Allowed, p.Src) || within(d.rules.Allowed, p.Dst):
		return Allowed
	case (podSrc || d.node(p.Src)) && (podDst || d.node(p.Dst)):
		return Plain
	}
	return Outside
}

func (d *Detector) node(a netip.Addr) bool { return slices.Contains(d.rules.Nodes, a) }

func within(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (d *Detector) find(what string, f Frame, p *inet.Headers) {
	if len(d.report.Finds) < maxFinds {
		d.report.Finds = append(d.report.Finds,
			Find{f.Interface, what, p.Src, p.Dst, protocolName(p), len(f.Data)})
	}
}

func protocolName(p *inet.Headers) string {
	if !p.IP() {
		return ""
	}
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return "icmp"
	}
	return fmt.Sprint(p.Protocol)
}
