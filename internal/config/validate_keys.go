package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft.dev/weft/api/v1alpha1"
)

// Bounds of the encryption and keys sections.
const (
	maxTrustDomain = 255
	minMaxAge      = time.Second
	maxHardTTL     = 90 * 24 * time.Hour
	minLanePackets = 1024
	maxAuditSize   = 65536
	maxAuditKeep   = 1000
	// maxLanePackets keeps what one key may seal far below where AES-GCM's bounds begin to be felt.
	maxLanePackets = 1 << 48
)

// kekSchemes are the kinds of key-encryption keys; internal/keys/kek opens them.
var kekSchemes = []string{"file", "awskms", "gcpkms", "azurekeyvault", "hashivault"}

func checkEncryption(e Encryption) []Problem {
	out := slices.Concat(
		oneOf("encryption.mode", e.Mode, EncryptionStrict, EncryptionOff),
		oneOf("encryption.engine", e.Engine, EngineAuto, EngineBPF, EngineKmod, EngineUser),
	)
	if e.Port < 1 || e.Port > 65535 {
		out = append(out,
			problem("encryption.port", "is %d: want a UDP port, 1 to 65535, the same on every node",
				e.Port)...)
	}
	if e.Engine == EngineUser && e.PortIsSealers() {
		out = append(out,
			problem("encryption.port",
				"is %d: with engine user want one outside of %d to %d, from which sealers send",
				e.Port, sealerPortsFrom, sealerPortsTo-1)...)
	}
	if e.Engine == EngineUser && e.Lanes == MaxLanes {
		out = append(out,
			problem("encryption.lanes",
				"is %d: with engine user want 1 to %d, since the sealer has one of its own",
				e.Lanes, MaxLanes-1)...)
	}
	if e.Lanes < 0 || e.Lanes > MaxLanes {
		out = append(out,
			problem("encryption.lanes", "is %d: want 1 to %d, or 0 for one per CPU and at most 8",
				e.Lanes, MaxLanes)...)
	}
	return out
}

func checkKeys(k Keys) []Problem {
	return slices.Concat(
		checkKeysListen(k.Listen),
		checkTrustDomain(k.TrustDomain),
		checkCluster(k.Cluster),
		checkKEK(k.KEK),
		checkLifetimes(k),
		checkAudit(k.Audit),
		checkCertificates(k.Certificates),
	)
}

// checkKeysListen takes an empty address for all of the node's: other nodes call here.
func checkKeysListen(s string) []Problem {
	const want = "want [ADDRESS]:PORT, such as :4551 or 192.0.2.1:4551, the same port on every node"
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return problem("keys.listen", "is %q: %s", s, want)
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" {
		return problem("keys.listen", "is %q, where %q is no IP address: %s", s, host, want)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return problem("keys.listen", "is %q, where %q is no port: want 1 to 65535", s, port)
	}
	return nil
}

// checkTrustDomain follows SPIFFE.
func checkTrustDomain(s string) []Problem {
	bad := strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune(".-_", r)
	})
	if s == "" || len(s) > maxTrustDomain || bad {
		return problem("keys.trustDomain",
			"is %q: want at most %d of a-z, 0-9, '.', '-' and '_', such as weft.local", s,
			maxTrustDomain)
	}
	return nil
}

func checkCluster(s string) []Problem {
	if msg := v1alpha1.CheckLabel(s); msg != "" {
		return problem("keys.cluster", "%s", msg)
	}
	return nil
}

// checkKEK looks at the URL's form; internal/keys/kek knows what each scheme takes.
func checkKEK(s string) []Problem {
	const want = "want file:///etc/weft/kek, or the awskms, gcpkms, azurekeyvault or hashivault URL of a key"
	u, err := url.Parse(s)
	switch {
	case err != nil:
		// The text of err would show the whole URL, with what may be secret in it.
		return problem("keys.kek", "is not a URL: %s", want)
	case !slices.Contains(kekSchemes, u.Scheme):
		return problem("keys.kek", "has the scheme %q: %s", u.Scheme, want)
	case u.User != nil:
		return problem("keys.kek",
			"holds a user or password: credentials come from the environment of the agent, never from the URL")
	case u.Scheme == "file" && (u.Host != "" || len(u.Path) < 2):
		return problem("keys.kek",
			"is %q: want file:// and an absolute path, such as file:///etc/weft/kek", s)
	}
	return nil
}

func checkLifetimes(k Keys) []Problem {
	age, ttl, drain := time.Duration(k.MaxAge), time.Duration(k.HardTTL), time.Duration(k.Drain)
	var out []Problem
	if age < minMaxAge {
		out = append(out,
			problem("keys.maxAge", "is %s: want at least %s", k.MaxAge, Duration(minMaxAge))...)
	}
	switch {
	case ttl > maxHardTTL:
		out = append(out,
			problem("keys.hardTTL", "is %s: want at most %s", k.HardTTL, Duration(maxHardTTL))...)
	case ttl < 2*age:
		out = append(out,
			problem("keys.hardTTL",
				"is %s: want at least twice keys.maxAge (%s), so that a rotation that fails can be tried again", k.HardTTL, k.MaxAge)...)
	}
	if extend := time.Duration(k.ExtendTTL); extend < 0 || extend > ttl {
		out = append(out,
			problem("keys.extendTTL",
				"is %s: want 0s, which never extends, to keys.hardTTL (%s): whoever withdraws the KEK must not wait for longer", k.ExtendTTL, k.HardTTL)...)
	}
	if drain < 0 || drain > age {
		out = append(out,
			problem("keys.drain", "is %s: want 0s to keys.maxAge (%s)", k.Drain, k.MaxAge)...)
	}
	if k.MaxPackets < minLanePackets || k.MaxPackets > maxLanePackets {
		out = append(out,
			problem("keys.maxPackets", "is %d: want %d to %d (2^48)", k.MaxPackets, minLanePackets,
				int64(maxLanePackets))...)
	}
	return out
}

func checkAudit(a Audit) []Problem {
	var out []Problem
	if a.File != "" && a.File != AuditOff {
		out = checkPath("keys.audit.file", a.File)
	}
	if a.MaxSize < 1 || a.MaxSize > maxAuditSize {
		out = append(out,
			problem("keys.audit.maxSize", "is %d: want 1 to %d (MiB)", a.MaxSize, maxAuditSize)...)
	}
	if a.Keep < 1 || a.Keep > maxAuditKeep {
		out = append(out,
			problem("keys.audit.keep", "is %d: want 1 to %d full files", a.Keep, maxAuditKeep)...)
	}
	return out
}

// checkCertificates looks only at what the source uses.
func checkCertificates(c Certificates) []Problem {
	const field = "keys.certificates."
	switch c.Source {
	case CertificatesFiles:
		return slices.Concat(checkPath(field+"cert", c.Cert), checkPath(field+"key", c.Key),
			checkPath(field+"bundle", c.Bundle))
	case CertificatesSPIRE:
		return checkSPIRESocket(field+"spireSocket", c.SPIRESocket)
	}
	return problem(field+"source", "is %q: want %s or %s", c.Source, CertificatesFiles,
		CertificatesSPIRE)
}

// checkSPIRESocket follows the SPIFFE Workload Endpoint specification.
func checkSPIRESocket(field, s string) []Problem {
	want := fmt.Sprintf("is %q: want unix:// and an absolute path, such as unix:///run/spire/sockets/agent.sock, or tcp://ADDRESS:PORT", s)
	u, err := url.Parse(s)
	if err != nil {
		return problem(field, "%s", want)
	}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || len(u.Path) < 2 {
			return problem(field, "%s", want)
		}
	case "tcp":
		if _, err := netip.ParseAddrPort(u.Host); err != nil || u.Path != "" {
			return problem(field, "%s", want)
		}
	default:
		return problem(field, "%s", want)
	}
	return nil
}
