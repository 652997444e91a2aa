package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/api/v1alpha1"
)

const (
	maxInstance = 40
	maxIfName   = 15  // IFNAMSIZ without the final zero
	maxSocket   = 107 // sun_path without the final zero
	minMTU      = 1280
	maxMTU      = 65535
	minFlows    = 1024
	maxFlows    = 16 << 20
	maxEvents   = 1000000
	maxList     = 256
)

// Problem is what is wrong with one field, by its dotted path.
type Problem struct {
	Field string
	Msg   string
}

// Error is "field: msg".
func (p Problem) Error() string { return p.Field + ": " + p.Msg }

func problem(field, format string, args ...any) []Problem {
	return []Problem{{field, fmt.Sprintf(format, args...)}}
}

// Validate checks every value; a configuration from Load or Parse is checked
// already. It returns all problems, none for a good configuration.
func (c *Config) Validate() []Problem {
	return slices.Concat(
		checkNode(c.Node),
		checkInstance(c.Instance),
		oneOf("mode", c.Mode, ModeAuto, ModeXDP, ModeTC, ModeStack),
		checkUplinks(c.Uplinks),
		checkMTU(c.MTU),
		checkClusterCIDRs(c.ClusterCIDRs),
		checkStore(c.Store),
		checkIPAM(c.IPAM.Ranges),
		checkPrefixes("masquerade.except", c.Masquerade.Except),
		checkRootNamespace(c.Policy.Istio.RootNamespace),
		checkEncryption(c.Encryption),
		checkKeys(c.Keys),
		checkFlows(c.Flows),
		checkListen(c.Metrics.Listen),
		c.checkPaths(),
		oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error"),
		oneOf("log.format", c.Log.Format, "text", "json"),
	)
}

func checkNode(name string) []Problem {
	if name == "" {
		return problem("node", "is missing: give the name of this node's Node object")
	}
	if msg := v1alpha1.CheckName(name); msg != "" {
		return problem("node", "%s", msg)
	}
	return nil
}

// checkInstance also refuses names that would put one instance's files among
// those that the default instance keeps in the base directories.
func checkInstance(name string) []Problem {
	if name == "" {
		return nil
	}
	if len(name) > maxInstance || strings.ContainsFunc(name, notInstance) || name[0] == '-' ||
		name[len(name)-1] == '-' {
		return problem("instance",
			"is %q: want at most %d of a-z, 0-9 and '-', beginning and ending with a letter or digit", name, maxInstance)
	}
	if name == "endpoints" || strings.HasPrefix(name, "maps-") || strings.HasPrefix(name, "link-") {
		return problem("instance",
			"is %q, a name that the default instance uses for its own files: choose another", name)
	}
	return nil
}

func notInstance(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
}

func checkUplinks(names []string) []Problem {
	if len(names) > maxList {
		return problem("uplinks", "are %d interfaces: want at most %d", len(names), maxList)
	}
	var out []Problem
	for i, n := range names {
		field := fmt.Sprintf("uplinks[%d]", i)
		switch {
		case n == "", n == ".", n == "..", len(n) > maxIfName,
			strings.ContainsAny(n, "/: \t\n\v\f\r\x00"):
			out = append(out,
				problem(field,
					"is %q: want the name of an interface, at most %d bytes without blanks, '/' and ':'", n, maxIfName)...)
		case slices.Contains(names[:i], n):
			out = append(out, problem(field, "names %q a second time: keep one", n)...)
		}
	}
	return out
}

func checkRootNamespace(name string) []Problem {
	if msg := v1alpha1.CheckLabel(name); msg != "" {
		return problem("policy.istio.rootNamespace", "%s", msg)
	}
	return nil
}

func checkMTU(mtu int) []Problem {
	if mtu != 0 && (mtu < minMTU || mtu > maxMTU) {
		return problem("mtu",
			"is %d: want %d to %d (IPv6 needs %d), or 0 for the smallest MTU of the uplinks", mtu,
			minMTU, maxMTU, minMTU)
	}
	return nil
}

func checkPath(field, path string) []Problem {
	switch {
	case path == "":
		return problem(field, "is empty: want an absolute path")
	case strings.ContainsRune(path, 0):
		return problem(field, "is %q: a path has no zero byte", path)
	case !filepath.IsAbs(path):
		return problem(field, "is %q: want an absolute path, beginning with '/'", path)
	case filepath.Clean(path) == "/":
		return problem(field, "is %q: want a directory below '/'", path)
	}
	return nil
}

func checkClusterCIDRs(ranges []netip.Prefix) []Problem {
	if len(ranges) > maxList {
		return problem("clusterCIDRs", "are %d ranges: want at most %d", len(ranges), maxList)
	}
	var out []Problem
	for i, p := range ranges {
		field := fmt.Sprintf("clusterCIDRs[%d]", i)
		if msg := v1alpha1.CheckRange(p); msg != "" {
			out = append(out, problem(field, "%s", msg)...)
			continue
		}
		if j := slices.IndexFunc(ranges[:i], p.Overlaps); j >= 0 {
			out = append(out,
				problem(field, "%s overlaps clusterCIDRs[%d] %s: keep the larger one", p, j,
					ranges[j])...)
		}
	}
	return out
}

func checkIPAM(ranges []netip.Prefix) []Problem {
	if len(ranges) > maxList {
		return problem("ipam.ranges", "are %d ranges: want at most one per family", len(ranges))
	}
	var out []Problem
	for i, p := range ranges {
		field := fmt.Sprintf("ipam.ranges[%d]", i)
		if msg := v1alpha1.CheckRange(p); msg != "" {
			out = append(out, problem(field, "%s", msg)...)
			continue
		}
		for j, q := range ranges[:i] {
			if q.IsValid() && q.Addr().Is4() == p.Addr().Is4() {
				out = append(out,
					problem(field,
						"%s is of the same family as ipam.ranges[%d] %s: keep one range per family",
						p, j, q)...)
				break
			}
		}
		if p.Addr().BitLen()-p.Bits() < 2 {
			out = append(out,
				problem(field, "%s is too small: want a range of at least four addresses", p)...)
		}
	}
	return out
}

// checkPrefixes is for destinations, which need not be pods' addresses.
func checkPrefixes(field string, prefixes []netip.Prefix) []Problem {
	if len(prefixes) > maxList {
		return problem(field, "are %d ranges: want at most %d", len(prefixes), maxList)
	}
	var out []Problem
	for i, p := range prefixes {
		f := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case !p.IsValid():
			out = append(out, problem(f, "is empty: want an address range, such as 10.0.0.0/8")...)
		case p.Addr().Is4In6():
			out = append(out,
				problem(f, "%s is an IPv4 range written as IPv6: write it as IPv4", p)...)
		case p != p.Masked():
			out = append(out,
				problem(f, "%s has bits set after its first %d: write %s", p, p.Bits(),
					p.Masked())...)
		case slices.Contains(prefixes[:i], p):
			out = append(out, problem(f, "%s is there a second time: keep one", p)...)
		}
	}
	return out
}

func checkFlows(f Flows) []Problem {
	var out []Problem
	if f.MaxEntries < minFlows || f.MaxEntries > maxFlows {
		out = problem("flows.maxEntries", "is %d: want %d to %d", f.MaxEntries, minFlows, maxFlows)
	}
	if f.EventsPerSecond > maxEvents {
		out = append(out,
			problem("flows.eventsPerSecond", "is %d: want 0 (no events) to %d", f.EventsPerSecond,
				maxEvents)...)
	}
	if f.Log != "" {
		out = append(out, checkPath("flows.log", f.Log)...)
	}
	return out
}

func checkListen(s string) []Problem {
	const want = `want ADDRESS:PORT, such as 127.0.0.1:9551 or [::1]:9551, or "" for off`
	if s == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return problem("metrics.listen", "is %q: %s", s, want)
	}
	if host == "" {
		return problem("metrics.listen",
			"is %q, without an address: write 0.0.0.0:%s to listen on all of them; %s", s, port,
			want)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
		return problem("metrics.listen", "is %q, where %q is no IP address: %s", s, host, want)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return problem("metrics.listen",
			"is %q, where %q is no port: want 0 (any free one) to 65535", s, port)
	}
	return nil
}

func (c *Config) checkPaths() []Problem {
	run := checkPath("paths.run", c.Paths.Run)
	if n := len(c.Socket()); run == nil && n > maxSocket {
		run = problem("paths.run",
			"is too long: the socket %s would have a path of %d bytes, the kernel takes %d",
			c.Socket(), n, maxSocket)
	}
	return slices.Concat(run, checkPath("paths.state", c.Paths.State),
		checkPath("paths.bpf", c.Paths.BPF))
}
