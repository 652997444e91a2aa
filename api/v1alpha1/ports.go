package v1alpha1

import (
	"fmt"
	"slices"
	"strings"
)

// protocols are those of a pod's ports.
var protocols = []string{"TCP", "UDP", "SCTP"}

// MaxPorts is how many named ports a pod may have.
const MaxPorts = 64

func setPortDefaults(ports []NamedPort) {
	for i := range ports {
		setDefault(&ports[i].Protocol, protocols[0])
	}
}

// ports checks the named ports of a pod: a name means one port of each protocol.
func (v *validator) ports(field string, ports []NamedPort) {
	if len(ports) > MaxPorts {
		v.fail(field, "are %d ports: want at most %d", len(ports), MaxPorts)
		return
	}
	for i, p := range ports {
		at := fmt.Sprintf("%s[%d]", field, i)
		if !isPortName(p.Name) {
			v.fail(at+".name",
				"%s is not the name of a port: want at most 15 of a-z, 0-9 and '-', with a letter, "+
					"beginning and ending with a letter or digit, and no two '-' in a row",
				quote(p.Name))
		}
		if p.Port == 0 {
			v.fail(at+".port", "is missing: give the port's number, 1 to 65535")
		}
		if !slices.Contains(protocols, p.Protocol) {
			v.fail(at+".protocol", "%s is not a protocol: want TCP, UDP or SCTP", quote(p.Protocol))
		}
		same := func(q NamedPort) bool { return q.Name == p.Name && q.Protocol == p.Protocol }
		if first := slices.IndexFunc(ports[:i], same); first >= 0 {
			v.fail(at+".name", "%s names %s[%d], too: keep one", quote(p.Name), field, first)
		}
	}
}

func isPortName(s string) bool {
	return len(s) <= 15 && isDNSLabel(s, 15) && !strings.Contains(s, "--") &&
		strings.Trim(s, "0123456789-") != ""
}
