// Package control is how the agent speaks with weft-sealer, the process that seals and opens what
// comes in bulk: it starts the process, finds one that an earlier agent left running, gives it
// keys, and takes them over from it.
package control

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"weft.dev/weft/internal/version"
)

// Protocol is the version of the messages. An agent replaces a process of another one.
const Protocol = 1

// UID and GID are the process's own. No account needs them: nothing on disk is its. They are in
// the range that neither distributions nor systemd give out (systemd.io/UIDS-GIDS).
const (
	UID = 60979
	GID = 60979
)

// Build is what Hello says of a process of the calling program's build.
func Build() string {
	info := version.Get()
	return strings.TrimSpace(info.Version + " " + info.Commit)
}

// The descriptors that the process is started with.
const (
	TapFD = 3 // IFF_TAP|IFF_NO_PI|IFF_VNET_HDR
	// unix, SOCK_SEQPACKET, bound. The process itself listens: so its peers see its credentials.
	SocketFD = 4
)

// MaxSA is one more than the largest SA id: node in 12 bits, epoch in 4, lane in 6.
const MaxSA = 1 << 22

// MaxKeys is how many keys a process can be asked to hold: one for each entry of the maps of SAs,
// out and in (WEFT_MAX_SA_OUT and WEFT_MAX_SA_IN of bpf/lib/sa.h).
const MaxKeys = 65536 + 131072

// Key is one SA. Whoever holds one wipes it as soon as it can.
type Key struct {
	Out         bool   // seals; else opens
	SA          uint32 // node << 10 | epoch << 6 | lane
	Fingerprint uint64 // tells a key from the one that had the SA's number before
	Key         [32]byte
	Salt        [4]byte
}

// Wipe zeroes the secret parts.
func (k *Key) Wipe() {
	clear(k.Key[:])
	clear(k.Salt[:])
}

// Held says which key it is, without it.
func (k *Key) Held() Held { return Held{Out: k.Out, SA: k.SA, Fingerprint: k.Fingerprint} }

// Format gives nothing away, by any verb.
func (k Key) Format(s fmt.State, _ rune) {
	io.WriteString(s, "key") //nolint:errcheck // as fmt has it
}

// MarshalText gives nothing away either: to logs, to JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte("key"), nil }

// Wipe zeroes keys.
func Wipe(keys []Key) {
	for i := range keys {
		keys[i].Wipe()
	}
}

// Held names a key that the process has.
type Held struct {
	Out         bool
	SA          uint32
	Fingerprint uint64
}

// Hello is who the process is.
type Hello struct {
	Protocol uint32
	PID      int    // in the process's own pid namespace
	Build    string // version and commit; another than the agent's own means: replace it
	Begun    bool   // reads the tap
}

// Config is what the process needs to know besides keys.
type Config struct {
	ESPPort uint16 // UDP port of ESP, where sealed packets go
}

// Reason is why the process refused a packet; the numbers are those of REFUSED frames.
type Reason uint8

// The reasons.
const (
	ReasonNoKey      Reason = 1 + iota // no key of that SA
	ReasonMalformed                    // lengths, trailer or inner packet are wrong
	ReasonAuth                         // wrong tag: forged, corrupted, or of another key
	ReasonReplayed                     // the number was there already, or is older than the window
	ReasonSealFailed                   // cannot be cut or summed, or numbers were used
	ReasonECN                          // congestion marked on what cannot carry it (RFC 6040)
	reasons
)

var reasonNames = [reasons]string{
	"", "no_key", "malformed", "auth", "replayed", "seal_failed", "ecn",
}

// String is the reason's name in logs and metrics.
func (r Reason) String() string {
	if r == 0 || r >= reasons {
		return "unknown"
	}
	return reasonNames[r]
}

// Direction counts what went through the process one way since it was started.
type Direction struct {
	FramesIn      uint64          // read from the tap
	FramesOut     uint64          // written to it, refusals left out
	Packets       uint64          // sealed or opened: ESP packets
	Bytes         uint64          // of the inner packets, headers included
	WriteFailures uint64          // frames that the tap did not take
	Refused       [reasons]uint64 // packets, by Reason
}

// Stats is what the process has done.
type Stats struct {
	Seal, Open Direction
	Ignored    uint64 // frames of no known kind, or too short to tell
}

// Errors that callers ask for with errors.Is.
var (
	// ErrClosed: the connection is gone, by Close, by the process's end, or because an answer was
	// late; Dial again.
	ErrClosed = errors.New("connection to weft-sealer is closed")
	// ErrRefused: the process did not do what it was asked.
	ErrRefused = errors.New("weft-sealer refused")
	// ErrNotSealer: what listens on the socket is not weft-sealer's uid.
	ErrNotSealer = errors.New("not weft-sealer")
)

// Timeout is how long one operation may take where its context has no deadline.
const Timeout = 5 * time.Second
