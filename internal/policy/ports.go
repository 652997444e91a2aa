package policy

import (
	"math/bits"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

const maxPort = 65535

// port reads one entry of a rule's ports.
func (r *reader) port(field string, p networkingv1.NetworkPolicyPort) (port, bool) {
	name := corev1.ProtocolTCP
	if p.Protocol != nil {
		name = *p.Protocol
	}
	protocol, known := protocols[name]
	if !known {
		r.fail(field+".protocol", "%q is no protocol of a policy: want TCP, UDP or SCTP", name)
		return port{}, false
	}
	switch {
	case p.Port == nil && p.EndPort != nil:
		r.fail(field+".endPort", "has no port to begin from: give port, or take endPort away")
		return port{}, false
	case p.Port == nil:
		return port{protocol: protocol, to: maxPort}, true
	case p.Port.Type == intstr.String:
		return r.namedPort(field, protocol, p)
	}
	return r.portRange(field, protocol, int64(p.Port.IntVal), p.EndPort)
}

func (r *reader) namedPort(field string, protocol uint8,
	p networkingv1.NetworkPolicyPort) (port, bool) {
	if p.EndPort != nil {
		r.fail(field+".endPort",
			"goes with a number, and port is the name %q: give the first port's number",
			p.Port.StrVal)
		return port{}, false
	}
	if wrong := validation.IsValidPortName(p.Port.StrVal); len(wrong) > 0 {
		r.fail(field+".port", "%q is neither number nor name of a port: %s", p.Port.StrVal,
			strings.Join(wrong, "; "))
		return port{}, false
	}
	return port{protocol: protocol, name: p.Port.StrVal}, true
}

func (r *reader) portRange(field string, protocol uint8, from int64, end *int32) (port, bool) {
	to := from
	if end != nil {
		to = int64(*end)
	}
	switch {
	case from < 1 || from > maxPort:
		r.fail(field+".port", "is %d: want 1 to %d", from, maxPort)
		return port{}, false
	case to < from || to > maxPort:
		r.fail(field+".endPort", "is %d: want %d, which is port, to %d", to, from, maxPort)
		return port{}, false
	}
	return port{protocol: protocol, from: uint16(from), to: uint16(to)}, true
}

// portPrefix is some ports by the first bits of their numbers.
type portPrefix struct {
	protocol uint8
	port     uint16
	bits     uint8
}

// parent is the next shorter prefix, false for every protocol.
func (p portPrefix) parent() (portPrefix, bool) {
	switch {
	case p.bits > 0:
		p.bits--
		p.port &= ^uint16(0) << (16 - p.bits)
		return p, true
	case p.protocol != AnyProtocol:
		return portPrefix{}, true
	}
	return p, false
}

// split cuts the ports from and to, and all between, into the fewest prefixes.
func split(protocol uint8, from, to uint16) []portPrefix {
	var out []portPrefix
	for next, last := uint32(from), uint32(to); next <= last; {
		size := uint32(1) << min(bits.TrailingZeros32(next|1<<16), 16)
		for next+size-1 > last {
			size >>= 1
		}
		out = append(out,
			portPrefix{protocol, uint16(next), uint8(16 - bits.TrailingZeros32(size))})
		next += size
	}
	return out
}

// numbers are those that an endpoint has for a named port.
func (e *Endpoint) numbers(p port) []uint16 {
	var out []uint16
	for _, own := range e.Ports {
		if own.Name == p.name && own.Protocol == p.protocol {
			out = append(out, own.Number)
		}
	}
	return out
}
