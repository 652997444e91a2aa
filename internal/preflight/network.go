package preflight

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/config"
)

func (l *look) objects() Check {
	snapshot, err := l.Objects(l.ctx, l.cfg)
	switch {
	case err != nil && l.cfg.Store.Etcd.On():
		return failed("docs/store-etcd.md shows how nodes reach etcd, and what the errors mean",
			"%v", err)
	case err != nil && l.cfg.Store.Kubernetes.Enabled:
		return failed("docs/kubernetes.md shows what agents need of Kubernetes' API", "%v", err)
	case err != nil:
		return failed("docs/install.md shows what is to be in it", "%v", err)
	}
	l.snapshot, l.node = snapshot, snapshot.Nodes[l.cfg.Node]
	found := fmt.Sprintf("%d nodes in %s", len(snapshot.Nodes), l.cfg.Store.Where())
	switch {
	case len(snapshot.Errors) > 0:
		return failed("correct it; the other objects are used", "%s; %v", found, snapshot.Errors[0])
	case l.node == nil:
		return failed("write a Node object of this name, or correct node in the configuration",
			"%s, none of them %q", found, l.cfg.Node)
	}
	return ok("%s, among them %s", found, l.cfg.Node)
}

// needsNode is what checks say that have to know the node.
func needsNode() Check { return failed("see objects", "not known without this node's object") }

func (l *look) uplinks() Check {
	if l.node == nil {
		return needsNode()
	}
	links, err := l.Links(l.cfg, l.node)
	if err != nil {
		return failed("set uplinks, or spec.addresses of the Node object, to what `ip address` shows",
			"%v", err)
	}
	l.links = &links
	return ok("%s", strings.Join(links.Uplinks, ", "))
}

func (l *look) mtu() Check {
	if l.links == nil {
		return failed("see uplinks", "not known without uplinks")
	}
	mtu, err := l.PodMTU(l.cfg, l.links.MTU, l.node, l.snapshot)
	if err != nil {
		return failed("set the MTU of the uplinks, or mtu", "%v", err)
	}
	return ok("%d on the uplinks, %d for pods", l.links.MTU, mtu)
}

func (l *look) ipv6() Check {
	if l.IPv6() {
		return ok("the kernel does IPv6")
	}
	if l.node != nil {
		for _, p := range l.node.Spec.PodCIDRs {
			if p.Addr().Is6() {
				return warned("unset net.ipv6.conf.all.disable_ipv6, or take the IPv6 range out of the Node object",
					"IPv6 is disabled, and pods have the range %s: they get IPv4 only", p)
			}
		}
	}
	return ok("IPv6 is disabled, and not needed")
}

// firewall tells of rules that the datapath's redirects pass by, and of a policy that drops what
// takes the stack.
func (l *look) firewall() Check {
	chains, err := l.Forward()
	if err != nil {
		return warned("look with `nft list ruleset`", "the packet filter cannot be read: %v", err)
	}
	var dropping, ruled []string
	for _, c := range chains {
		name := c.Family + " " + c.Table + " " + c.Name
		if c.Drops {
			dropping = append(dropping, name)
		}
		if c.Rules > 0 {
			ruled = append(ruled, name)
		}
	}
	legacy, _ := l.ReadFile("/proc/net/ip_tables_names") // there once such a table is
	if slices.Contains(strings.Fields(string(legacy)), "filter") {
		ruled = append(ruled, "iptables-legacy filter")
	}
	switch {
	case dropping != nil:
		return warned("let pods through there (docs/install.md, the host's firewall): pods reach the world through it",
			"forwarding drops by default: %s", strings.Join(dropping, ", "))
	case ruled != nil && l.cfg.Mode != config.ModeStack:
		return warned("set mode: stack if they are to hold for pods (docs/install.md, the host's firewall)",
			"what goes from pod to pod passes by the rules in %s", strings.Join(ruled, ", "))
	}
	return ok("no rules that forwarded packets would pass by")
}

// receiving is the state of sockets that take what comes to a port, in the kernel's lists
// (TCP_CLOSE, TCP_LISTEN).
var receiving = map[string]string{"udp": "07", "tcp": "0A"}

func (l *look) ports() Check {
	if pid := l.Running(l.cfg); pid != 0 {
		return ok("the agent runs, pid %d, and has them", pid)
	}
	type socket struct{ proto, port, key string }
	wanted := []socket{{"tcp", portOf(l.cfg.Metrics.Listen), "metrics.listen"}}
	if l.cfg.Encryption.On() {
		wanted = append(wanted,
			socket{"udp", strconv.Itoa(l.cfg.Encryption.Port), "encryption.port"},
			socket{"tcp", portOf(l.cfg.Keys.Listen), "keys.listen"})
	}
	var free, taken []string
	for _, w := range wanted {
		name := strings.ToUpper(w.proto) + " " + w.port
		switch {
		case w.port == "" || w.port == "0":
		case l.bound(w.proto, w.port):
			taken = append(taken, fmt.Sprintf("%s (%s)", name, w.key))
		default:
			free = append(free, name)
		}
	}
	if taken != nil {
		return failed("see who has it with `ss -lnptu`, and stop that or set another port, on every node",
			"taken: %s", strings.Join(taken, ", "))
	}
	return ok("free: %s", strings.Join(free, ", "))
}

func portOf(listen string) string {
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		return ""
	}
	return port
}

// bound looks for a socket on a port in /proc/net: binding one to see would be a change, if a short
// one.
func (l *look) bound(proto, port string) bool {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return false
	}
	suffix := fmt.Sprintf(":%04X", number)
	for _, family := range []string{"", "6"} {
		text, _ := l.ReadFile("/proc/net/" + proto + family)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 3 && strings.HasSuffix(f[1], suffix) && f[3] == receiving[proto] {
				return true
			}
		}
	}
	return false
}

// sockets are where runtimes listen.
var sockets = [][2]string{
	{"containerd", "/run/containerd/containerd.sock"}, {"CRI-O", "/run/crio/crio.sock"},
	{"Docker", "/run/docker.sock"},
	{"Podman", "/usr/bin/podman"},
}

func (l *look) runtime() Check {
	var found []string
	for _, s := range sockets {
		if _, err := l.Stat(s[1]); err == nil {
			found = append(found, s[0])
		}
	}
	if found == nil {
		return warned("install a runtime that speaks CNI, such as containerd, when there are to be pods",
			"no container runtime")
	}
	return ok("%s", strings.Join(found, ", "))
}
