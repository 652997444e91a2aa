package config

import (
	"fmt"
	"path/filepath"
	"time"
)

// The modes of Encryption.Mode.
const (
	// EncryptionStrict lets nothing cross between nodes in cleartext that no
	// EncryptionPolicy names.
	EncryptionStrict = "strict"
	// EncryptionOff routes in cleartext.
	EncryptionOff = "off"
)

// The engines that Encryption.Engine may name.
const (
	EngineAuto = "auto"
	EngineBPF  = "bpf"
	EngineKmod = "kmod"
	EngineUser = "user"
)

// The sources of a node's certificate.
const (
	CertificatesFiles = "files"
	CertificatesSPIRE = "spire"
)

// MaxLanes is the number of lanes that the six bits of the SPI can tell apart.
const MaxLanes = 64

// Encryption says how packets to other nodes' pods travel.
type Encryption struct {
	// Mode is strict or off.
	Mode string `yaml:"mode" json:"mode"`
	// Engine is what does the AES-GCM: auto, bpf, kmod or user.
	Engine string `yaml:"engine" json:"engine"`
	// AllowTableAES lets engine bpf run on an AES of the kernel's whose time depends on the key.
	AllowTableAES bool `yaml:"allowTableAES" json:"allowTableAES"`
	// Port is the UDP port of ESP in UDP, the same on every node.
	Port int `yaml:"port" json:"port"`
	// Lanes is how many keys this node sends with towards each peer. 0: one per
	// CPU, at most 8.
	Lanes int `yaml:"lanes" json:"lanes"`
}

// Sealers send from UDP ports from sealerPortsFrom up to below sealerPortsTo (SEALER_PORT_BASE).
const sealerPortsFrom, sealerPortsTo = 0x8000, 0xc000

// PortIsSealers says whether Port is one that sealers send from. Agents send from it: what came to
// both could not be told apart.
func (e Encryption) PortIsSealers() bool {
	return e.Port >= sealerPortsFrom && e.Port < sealerPortsTo
}

// On says whether packets between nodes are sealed.
func (e Encryption) On() bool { return e.Mode != EncryptionOff }

// Keys says where keys come from and how long they live.
type Keys struct {
	// Listen is [ADDRESS]:PORT of the handshake with other nodes.
	Listen string `yaml:"listen" json:"listen"`
	// TrustDomain is the SPIFFE trust domain of nodes and workloads.
	TrustDomain string `yaml:"trustDomain" json:"trustDomain"`
	// Cluster binds wrapped keys to this cluster.
	Cluster string `yaml:"cluster" json:"cluster"`
	// KEK is the URL of the key-encryption key. It holds no secret.
	KEK string `yaml:"kek" json:"kek"`
	// MaxAge is how old an epoch may be before the next one is made.
	MaxAge Duration `yaml:"maxAge" json:"maxAge"`
	// HardTTL is how old an epoch may be at all: after it nothing is sealed or opened with it.
	HardTTL Duration `yaml:"hardTTL" json:"hardTTL"`
	// ExtendTTL is how long beyond HardTTL, at most, keys in use live on while there is no next
	// epoch; 0: not at all.
	ExtendTTL Duration `yaml:"extendTTL" json:"extendTTL"`
	// Drain is how long an epoch's receive keys are kept after all senders have left it.
	Drain Duration `yaml:"drain" json:"drain"`
	// MaxPackets is how many packets one lane may seal before the next epoch is made.
	MaxPackets int64 `yaml:"maxPackets" json:"maxPackets"`
	// RequirePostQuantum refuses nodes that cannot agree on keys with X25519MLKEM768.
	RequirePostQuantum bool `yaml:"requirePostQuantum" json:"requirePostQuantum"`
	// Audit is the log of what is done with keys.
	Audit Audit `yaml:"audit" json:"audit"`
	// Certificates is where this node's certificate comes from.
	Certificates Certificates `yaml:"certificates" json:"certificates"`
}

// AuditOff as Audit.File switches the audit log off.
const AuditOff = "off"

// Audit is the append-only log of what is done with keys.
type Audit struct {
	// File is its path. "" is AuditFile in the state directory, AuditOff is none.
	File string `yaml:"file" json:"file"`
	// MaxSize is how many MiB a file may have before the next is begun.
	MaxSize int `yaml:"maxSize" json:"maxSize"`
	// Keep is how many full files are kept.
	Keep int `yaml:"keep" json:"keep"`
}

// auditFile is the audit log's name in the state directory.
const auditFile = "audit.jsonl"

// AuditFile is the audit log's path, "" for none.
func (c *Config) AuditFile() string {
	switch c.Keys.Audit.File {
	case "":
		return filepath.Join(c.StateDir(), auditFile)
	case AuditOff:
		return ""
	}
	return c.Keys.Audit.File
}

// Certificates is where a node's certificate and those it trusts come from.
type Certificates struct {
	// Source is files or spire.
	Source string `yaml:"source" json:"source"`
	// Cert, Key and Bundle are PEM files, for source files.
	Cert   string `yaml:"cert" json:"cert"`
	Key    string `yaml:"key" json:"key"`
	Bundle string `yaml:"bundle" json:"bundle"`
	// SPIRESocket is the Workload API's address, for source spire.
	SPIRESocket string `yaml:"spireSocket" json:"spireSocket"`
}

func defaultEncryption() Encryption {
	return Encryption{Mode: EncryptionStrict, Engine: EngineAuto, Port: 4500}
}

func defaultKeys() Keys {
	return Keys{
		Listen: ":4551", TrustDomain: "weft.local", Cluster: "default", KEK: "file:///etc/weft/kek",
		MaxAge: Duration(24 * time.Hour), HardTTL: Duration(72 * time.Hour),
		Drain:      Duration(30 * time.Second),
		MaxPackets: maxLanePackets,
		Audit:      Audit{MaxSize: 64, Keep: 8},
		Certificates: Certificates{
			Source: CertificatesFiles, Cert: "/etc/weft/node.crt", Key: "/etc/weft/node.key",
			Bundle: "/etc/weft/ca.crt", SPIRESocket: "unix:///run/spire/sockets/agent.sock",
		},
	}
}

// Duration is a time span in a configuration file: 30s, 24h, 1h30m.
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	span, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("not a time span: %w", err)
	}
	*d = Duration(span)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is the span without units that are zero: 24h, not 24h0m0s.
func (d Duration) String() string {
	text := time.Duration(d).String()
	for _, tail := range []string{"m0s", "h0m"} {
		if n := len(text) - len(tail) + 1; n > 0 && len(text) > len(tail) &&
			text[len(text)-len(tail):] == tail {
			text = text[:n]
		}
	}
	return text
}

// Wanted says in words what the text of a Duration looks like.
func (Duration) Wanted() string { return "a time span, such as 30s, 24h or 1h30m" }
