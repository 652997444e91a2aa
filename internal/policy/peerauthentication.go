package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// KindPeerAuthentication is the kind of Istio's that says whether pods let in what comes in
// cleartext, of security.istio.io/v1 and of v1beta1, which is the same.
const KindPeerAuthentication = "PeerAuthentication"

// peerAuthenticationSpec is Istio's PeerAuthentication, see authorizationSpec. JSON has numbers as
// texts where they are keys.
type peerAuthenticationSpec struct {
	Selector      *workloadSelector     `yaml:"selector" json:"selector,omitempty"`
	MTLS          *mutualTLS            `yaml:"mtls" json:"mtls,omitempty"`
	PortLevelMTLS map[string]*mutualTLS `yaml:"portLevelMtls" json:"portLevelMtls,omitempty"`
}

type mutualTLS struct {
	Mode string `yaml:"mode" json:"mode,omitempty"`
}

// mtlsMode is a mode of mutual TLS.
type mtlsMode uint8

const (
	// mtlsUnset takes the mode of the wider scope.
	mtlsUnset mtlsMode = iota
	// mtlsPermissive is DISABLE, too: nothing is refused for having come sealed.
	mtlsPermissive
	mtlsStrict
)

// peerAuthentication is what a PeerAuthentication says.
type peerAuthentication struct {
	// selects: it is about the pods of its namespace that its selector is, and else about all of
	// the namespace, or of the mesh.
	selects bool
	mode    mtlsMode
	// at is the rule that is its mode, and ports are the modes of ports.
	at    Rule
	ports map[uint16]mtlsPort
	// created is when the object was, zero where nobody says: of several of one scope the oldest
	// counts.
	created time.Time
	// closed: it is STRICT on all ports, whatever others say, as something is wrong with it.
	closed bool
}

// mtlsPort is the mode of a port, and the rule that is it.
type mtlsPort struct {
	mode mtlsMode
	at   Rule
}

// readPeerAuthentication checks a PeerAuthentication. One with errors is STRICT for the pods it
// selects, on all ports.
func readPeerAuthentication(meta metav1.ObjectMeta, spec *peerAuthenticationSpec,
	from source) *Policy {
	r := newReader(KindPeerAuthentication, meta, spec, from)
	p := r.policy
	p.applies[Ingress] = true
	p.subject, p.peerAuth = labels.Everything(), &peerAuthentication{
		created: meta.CreationTimestamp.UTC(), ports: map[uint16]mtlsPort{},
		at: r.ruleAt("spec.mtls.mode").at,
	}
	if spec.Selector != nil && len(spec.Selector.MatchLabels) > 0 {
		p.peerAuth.selects = true
		p.subject = r.matchLabels("spec.selector.matchLabels", spec.Selector.MatchLabels)
	}
	p.peerAuth.mode = r.mtls("spec.mtls.mode", spec.MTLS)
	r.mtlsPorts("spec.portLevelMtls", spec.PortLevelMTLS)
	if p.Broken() {
		if r.maySelect("selector", "mtls", "portLevelMtls") {
			p.subject, p.peerAuth.selects = labels.Everything(), false
		}
		p.closePeerAuth()
	}
	p.content = contentOf(p) + p.peerAuth.created.String()
	return p
}

func (r *reader) mtls(field string, in *mutualTLS) mtlsMode {
	if in == nil {
		return mtlsUnset
	}
	switch in.Mode {
	case "", "UNSET":
		return mtlsUnset
	case "STRICT":
		return mtlsStrict
	case "PERMISSIVE":
	case "DISABLE":
		r.warn(field, "DISABLE is what PERMISSIVE is, as in Istio's ambient mode: what comes sealed "+
			"is let in too; an EncryptionPolicy says what is not sealed")
	default:
		r.fail(field, "is %q: want STRICT, PERMISSIVE, DISABLE or UNSET", in.Mode)
	}
	return mtlsPermissive
}

func (r *reader) mtlsPorts(field string, in map[string]*mutualTLS) {
	switch {
	case in == nil:
		return
	case len(in) == 0:
		r.fail(field, "is empty: give a port, or take it away")
	case !r.policy.peerAuth.selects:
		r.fail(field, "goes only with a selector that names labels: say for which pods")
	}
	for _, text := range sortedKeys(in) {
		at := field + "[" + text + "]"
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 || strings.HasPrefix(text, "0") {
			r.fail(at, "%q is no port: want a number from 1 to %d", text, maxPort)
			continue
		}
		if mode := r.mtls(at+".mode", in[text]); mode != mtlsUnset {
			r.policy.peerAuth.ports[uint16(port)] = mtlsPort{mode, r.ruleAt(at + ".mode").at}
		}
	}
}

// rules are those that are not left to a wider scope.
func (a *peerAuthentication) rules() (out []Rule) {
	if a.mode != mtlsUnset {
		out = append(out, a.at)
	}
	for _, port := range slices.Sorted(maps.Keys(a.ports)) {
		out = append(out, a.ports[port].at)
	}
	return out
}

// closePeerAuth makes a PeerAuthentication one that is STRICT, in a copy of what it said: that may
// be another's, too.
func (p *Policy) closePeerAuth() {
	p.peerAuth = &peerAuthentication{selects: p.peerAuth.selects, created: p.peerAuth.created,
		mode: mtlsStrict, closed: true, at: Rule{
			Kind: p.Kind, Name: p.Key(), File: p.file, Line: p.line,
			Field: "which is STRICT, as something is wrong with it",
		}}
}
