package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxPrefix is the length of the longest store.etcd.prefix, in bytes.
const maxPrefix = 200

func checkStore(s Store) []Problem {
	return slices.Concat(checkPlace(s), checkKubernetes(s))
}

func checkKubernetes(s Store) []Problem {
	k := s.Kubernetes
	if !k.Enabled {
		if k.Kubeconfig != "" {
			return problem("store.kubernetes.enabled",
				"is false, and store.kubernetes.kubeconfig is given: enable it, or take that away")
		}
		return nil
	}
	var out []Problem
	if s.Dir != "" || s.Etcd.On() {
		out = problem("store.kubernetes.enabled",
			"is true, and store.dir or store.etcd is given: objects are in one place, take the others away")
	}
	if k.Kubeconfig != "" {
		out = append(out, checkPath("store.kubernetes.kubeconfig", k.Kubeconfig)...)
	}
	return out
}

func checkPlace(s Store) []Problem {
	if s.Kubernetes.Enabled && s.Dir == "" && !s.Etcd.On() {
		return checkPrefix(s.Etcd.Prefix)
	}
	if !s.Etcd.On() {
		out := checkPath("store.dir", s.Dir)
		if s.Etcd.TLS != (EtcdTLS{}) {
			out = append(out,
				problem("store.etcd.endpoints",
					"are missing, and store.etcd.tls is given: name etcd's members, or take it away")...)
		}
		return slices.Concat(out, checkPrefix(s.Etcd.Prefix))
	}
	var out []Problem
	if s.Dir != "" {
		out = problem("store.dir",
			"is given, and so is store.etcd: objects are in one place, take one of the two away")
	}
	return slices.Concat(out, checkEtcdEndpoints(s.Etcd), checkEtcdTLS(s.Etcd),
		checkPrefix(s.Etcd.Prefix))
}

func checkEtcdEndpoints(e Etcd) []Problem {
	if len(e.Endpoints) > maxList {
		return problem("store.etcd.endpoints", "are %d: want at most %d", len(e.Endpoints), maxList)
	}
	var out []Problem
	for i, endpoint := range e.Endpoints {
		field := fmt.Sprintf("store.etcd.endpoints[%d]", i)
		switch msg := checkEtcdEndpoint(endpoint); {
		case msg != "":
			out = append(out, problem(field, "is %q: %s", endpoint, msg)...)
		case slices.Contains(e.Endpoints[:i], endpoint):
			out = append(out, problem(field, "names %q a second time: keep one", endpoint)...)
		}
	}
	return out
}

// checkEtcdEndpoint says what is wrong with a URL, "" if nothing is. All that etcd says is
// believed, so what travels on a network is to be TLS.
func checkEtcdEndpoint(endpoint string) string {
	const want = "want https://HOST:PORT, or unix:///PATH for an etcd on this machine"
	u, err := url.Parse(endpoint)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return want
	}
	if u.Scheme == "unix" {
		if u.Host != "" || len(u.Path) < 2 {
			return want
		}
		return ""
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || host == "" || u.Path != "" || u.Scheme != "https" && u.Scheme != "http" {
		return want
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return want
	}
	if addr, err := netip.ParseAddr(host); u.Scheme == "http" &&
		(err != nil || !addr.IsLoopback()) {
		return "http is for addresses of the loopback: " + want
	}
	return ""
}

func checkEtcdTLS(e Etcd) []Problem {
	https := slices.ContainsFunc(e.Endpoints,
		func(s string) bool { return strings.HasPrefix(s, "https:") })
	if !https {
		if e.TLS != (EtcdTLS{}) {
			return problem("store.etcd.tls",
				"is given, and no endpoint is https: take it away, or write https://")
		}
		return nil
	}
	out := checkPath("store.etcd.tls.ca", e.TLS.CA)
	if e.TLS.Cert == "" && e.TLS.Key == "" {
		return out
	}
	return slices.Concat(out, checkPath("store.etcd.tls.cert", e.TLS.Cert),
		checkPath("store.etcd.tls.key", e.TLS.Key))
}

func checkPrefix(prefix string) []Problem {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_/"
	if len(prefix) < 2 || len(prefix) > maxPrefix || prefix[0] != '/' ||
		strings.HasSuffix(prefix, "/") ||
		strings.Contains(prefix, "//") || strings.Trim(prefix, letters) != "" {
		return problem("store.etcd.prefix",
			"is %q: want '/' and at most %d letters, digits, '.', '-', '_' and '/', such as /weft",
			prefix, maxPrefix-1)
	}
	return nil
}
