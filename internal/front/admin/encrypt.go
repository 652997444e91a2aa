package admin

import (
	"net/netip"
	"time"

	"weft.dev/weft/internal/datapath"
)

// Encryption is the answer of /v1/encrypt. Nothing in it is secret.
type Encryption struct {
	Node string `json:"node"`
	// Mode is strict or off; with off, what follows is empty.
	Mode string `json:"mode"`
	// Engine does the AES-GCM.
	Engine EncryptEngine `json:"engine"`
	// Sealer is the process that takes what comes in bulk, nil without one.
	Sealer *Sealer `json:"sealer,omitempty"`
	// VMForks says how resumption from a snapshot is noticed.
	VMForks VMForks `json:"vmForks"`
	Port    int     `json:"port,omitempty"`
	// Lanes is how many keys this node sends with towards each peer.
	Lanes       int              `json:"lanes,omitempty"`
	TrustDomain string           `json:"trustDomain,omitempty"`
	Certificate *NodeCertificate `json:"certificate,omitempty"`
	// Epoch is the newest that this node uses, nil while there is none.
	Epoch *EncryptEpoch `json:"epoch,omitempty"`
	// OldestKey is when the oldest key in use was installed.
	OldestKey time.Time        `json:"oldestKey,omitzero"`
	Sent      datapath.Traffic `json:"sent"`
	Received  datapath.Traffic `json:"received"`
	// Handshakes and Rotations count since the agent started.
	Handshakes       uint64        `json:"handshakes"`
	FailedHandshakes uint64        `json:"failedHandshakes"`
	Rotations        uint64        `json:"rotations"`
	Peers            []EncryptPeer `json:"peers"`
	// Plain is what the datapath lets travel in cleartext, for EncryptionPolicies and annotations.
	// Where it is behind those, Problems say so.
	Plain []netip.Prefix `json:"plain,omitempty"`
	// Errors are drops of this node that have to do with encryption, by name.
	Errors   []Drop   `json:"errors,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Sealer is the process that seals and opens what comes in bulk.
type Sealer struct {
	// PID is 0 while it does not run: then the hooks seal everything.
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Started time.Time `json:"started,omitzero"`
	// Starts counts the processes that this agent has started.
	Starts int `json:"starts"`
	// Sealed and Opened count since the process was started.
	Sealed SealerTraffic `json:"sealed"`
	Opened SealerTraffic `json:"opened"`
	// Refused are packets by what was wrong with them.
	Refused map[string]uint64 `json:"refused,omitempty"`
	// Lost are frames, each of one packet or many, that the sealer's full queue had no room for.
	// They count since the tap was made.
	Lost uint64 `json:"lost"`
}

// SealerTraffic is what passed the sealer one way.
type SealerTraffic struct {
	// Frames are those that hooks handed over, each of one packet or many.
	Frames uint64 `json:"frames"`
	// Packets are those on the wire, Bytes what was in them.
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	// WriteFailures are frames that the kernel did not take back.
	WriteFailures uint64 `json:"writeFailures"`
}

// VMForks says how it is noticed that the node is a virtual machine that was resumed from a
// snapshot or copied.
type VMForks struct {
	// Detection is fentry, log, clock or none, from the fastest to none needed.
	Detection string `json:"detection"`
	Why       string `json:"why"`
	// Generation counts the forks that were noticed.
	Generation uint64 `json:"generation"`
}

// AES is a cipher of the kernel's; ConstantTime says that its timing leaks nothing about keys.
type AES struct {
	Driver       string `json:"driver"`
	ConstantTime bool   `json:"constantTime"`
}

// EncryptEngine says what does the AES-GCM, and why.
type EncryptEngine struct {
	Asked  string `json:"asked"`
	Active string `json:"active,omitempty"`
	Why    string `json:"why,omitempty"`
	// NoSealer is why engine auto has no sealer.
	NoSealer string `json:"noSealer,omitempty"`
	// AES is the kernel's cipher behind engine bpf.
	AES AES `json:"aes,omitzero"`
}

// NodeCertificate is what this node shows to the others.
type NodeCertificate struct {
	ID       string    `json:"id,omitempty"`
	NotAfter time.Time `json:"notAfter,omitzero"`
	// Problem is why there is none, or why it cannot be used.
	Problem string `json:"problem,omitempty"`
}

// EncryptEpoch is one data-encryption key's life.
type EncryptEpoch struct {
	Number  uint64    `json:"number"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	// KEK wrapped it: a URL without secrets, and its version.
	KEK        string `json:"kek"`
	KEKVersion string `json:"kekVersion,omitempty"`
}

// EncryptPeer is another node and the keys shared with it.
type EncryptPeer struct {
	Node string `json:"node"`
	// State is one of keys.States: "up" when packets go both ways with the newest epoch's keys.
	State string `json:"state"`
	// SendEpoch and ReceiveEpoch are the numbers of the epochs of the newest keys in use, 0 for
	// none.
	SendEpoch    uint64 `json:"sendEpoch"`
	ReceiveEpoch uint64 `json:"receiveEpoch"`
	// Handshake is when keys were last agreed on, and how; zero if not since the agent started.
	Handshake   time.Time `json:"handshake,omitzero"`
	PostQuantum bool      `json:"postQuantum"`
	Group       string    `json:"group,omitempty"`
	// Outer is the family of the packets on the wire, Address the peer's end.
	Outer   string     `json:"outer,omitempty"`
	Address netip.Addr `json:"address,omitzero"`
	// MTU is the largest packet that fits the wire when sealed, Path what the probes found.
	MTU  int        `json:"mtu,omitempty"`
	Path *PathCheck `json:"path,omitempty"`
	// Identities are how many the peer's packets may have: those of the endpoints that it has
	// published.
	Identities int              `json:"identities"`
	Installed  time.Time        `json:"installed,omitzero"`
	Expires    time.Time        `json:"expires,omitzero"`
	Sent       datapath.Traffic `json:"sent"`
	Received   datapath.Traffic `json:"received"`
	// Problem is what keeps keys from being agreed on.
	Problem string `json:"problem,omitempty"`
}

// PathCheck is what probes of full size found out about the way to a peer.
type PathCheck struct {
	// Probing says that the first probe has not ended: nothing else is known yet.
	Probing bool `json:"probing,omitempty"`
	// Configured is the uplinks' MTU, Fits the largest packet that came back; equal on a good path.
	Configured int       `json:"configured"`
	Fits       int       `json:"fits,omitempty"`
	Checked    time.Time `json:"checked,omitzero"`
	Problem    string    `json:"problem,omitempty"`
}
