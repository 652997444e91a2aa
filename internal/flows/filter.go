package flows

import (
	"fmt"
	"net/netip"
	"strings"
)

// Filter selects records. The zero value selects all.
type Filter struct {
	From     []string `json:"from,omitempty"`
	To       []string `json:"to,omitempty"`
	Verdict  string   `json:"verdict,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Protocol string   `json:"protocol,omitempty"`
}

// Matcher is a Filter made ready for use.
type Matcher struct {
	from, to                  []endMatcher
	verdict, reason, protocol string
}

// endMatcher says whether one end of a flow is meant.
type endMatcher func(Peer) bool

// Compile checks the filter and makes it ready.
func (f Filter) Compile() (*Matcher, error) {
	matcher := &Matcher{reason: strings.ToLower(f.Reason)}
	var err error
	if matcher.from, err = compileEnds("from", f.From); err != nil {
		return nil, err
	}
	if matcher.to, err = compileEnds("to", f.To); err != nil {
		return nil, err
	}
	if matcher.verdict, err = compileVerdict(f.Verdict); err != nil {
		return nil, err
	}
	if f.Protocol != "" {
		number, err := ParseProtocol(f.Protocol)
		if err != nil {
			return nil, fmt.Errorf("protocol: %w", err)
		}
		matcher.protocol = ProtocolName(number)
	}
	return matcher, nil
}

// Match says whether a record is selected. Several ends of one side are alternatives;
// everything else must hold together.
func (m *Matcher) Match(flow Flow) bool {
	return anyEnd(m.from, flow.Source) && anyEnd(m.to, flow.Destination) &&
		(m.verdict == "" || m.verdict == flow.Verdict) &&
		(m.reason == "" || m.reason == strings.ToLower(flow.DropReason)) &&
		(m.protocol == "" || m.protocol == flow.Protocol)
}

func anyEnd(matchers []endMatcher, peer Peer) bool {
	for _, match := range matchers {
		if match(peer) {
			return true
		}
	}
	return len(matchers) == 0
}

func compileVerdict(text string) (string, error) {
	switch strings.ToLower(text) {
	case "":
		return "", nil
	case "forwarded", "forward", "allow":
		return Forwarded, nil
	case "dropped", "drop", "deny":
		return Dropped, nil
	}
	return "", fmt.Errorf("verdict: unknown verdict %q: use forwarded or dropped", text)
}

func compileEnds(field string, patterns []string) ([]endMatcher, error) {
	var matchers []endMatcher
	for _, pattern := range patterns {
		matcher, err := compileEnd(pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		matchers = append(matchers, matcher)
	}
	return matchers, nil
}

// compileEnd reads an address, a CIDR, "namespace/", "namespace/pod", or a pod's or node's name.
func compileEnd(pattern string) (endMatcher, error) {
	if addr, err := netip.ParseAddr(pattern); err == nil {
		return func(p Peer) bool { return p.IP == addr.Unmap() }, nil
	}
	if prefix, err := netip.ParsePrefix(pattern); err == nil {
		return func(p Peer) bool { return prefix.Contains(p.IP) }, nil
	}
	namespace, name, slash := strings.Cut(pattern, "/")
	if strings.ContainsAny(pattern, ": ,*") || strings.Contains(name, "/") || pattern == "" ||
		(slash && namespace == "") {
		return nil, fmt.Errorf("%q is no address, CIDR, namespace/pod, namespace/ or name", pattern)
	}
	switch {
	case !slash:
		return func(p Peer) bool { return p.Pod == pattern || (p.Pod == "" && p.Node == pattern) },
			nil
	case name == "":
		return func(p Peer) bool { return p.Namespace == namespace }, nil
	}
	return func(p Peer) bool { return p.Namespace == namespace && p.Pod == name }, nil
}
