package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/keys/kek"
)

// Encryption is what one scrape shows of how packets to other nodes are sealed.
type Encryption struct {
	EngineAsked, Engine string
	// Epoch is the newest that this node uses, 0 for none.
	Epoch        uint64
	EpochExpires time.Time
	// PeerStates counts the other nodes by the state of the keys shared with them.
	PeerStates  map[string]int
	PostQuantum int
	// Handshakes are by outcome, Rotations by reason.
	Handshakes, Rotations map[string]uint64
	RekeyRequests         uint64
	// Turned is connections to the handshake's port that were refused before a certificate was
	// seen, by reason.
	Turned map[string]uint64
	// VMForks is how often this virtual machine was resumed from a snapshot or copied.
	VMForks            uint64
	KeyAge             time.Duration
	CertificateExpires time.Time
	Keys               []Key
	// UnwrapErrors are epochs that could not be unwrapped, by kind: every attempt that ended so.
	UnwrapErrors map[string]uint64
	// Rewraps is how often this node wrapped an epoch's key again.
	Rewraps uint64
	// TTLRatio is how much of the hard TTL of the epoch in use is over, 0 to 1.
	TTLRatio float64
	// Extended: keys are in use beyond their epoch's hard TTL.
	Extended bool
	// KMSFailing names the failure of the last call to the KMS, "" for none.
	KMSFailing string
	// KMS counts the calls to it, nil while there is no key manager.
	KMS *kek.Meter
	// Sealer is what the sealer does, nil where the engine has none.
	Sealer *Sealer
	// Reasons are the drop reasons that have to do with encryption.
	Reasons map[string]bool
}

// Sealer is what the process does that takes what comes in bulk. Sealed and Opened count since that
// process was started.
type Sealer struct {
	Up             bool
	Starts         int
	Sealed, Opened datapath.Traffic
}

// Key is what passed one key. Traffic only grows while ID stays.
type Key struct {
	Node  string
	Out   bool
	Epoch uint64
	Lane  uint8
	ID    uint64
	datapath.Traffic
}

var (
	encPeersDesc = desc("weft_encrypt_peers",
		"Other nodes by the state of the keys shared with them: up, moving, no_key…", "state")
	encQuantumDesc = desc("weft_encrypt_peers_post_quantum",
		"Other nodes whose keys were last agreed on with X25519MLKEM768, since the agent started.")
	encPacketsDesc = desc("weft_encrypt_packets_total",
		"Packets sealed (out) and opened (in), since the agent started.", "direction")
	encBytesDesc = desc("weft_encrypt_bytes_total",
		"Bytes of packets sealed (out) and opened (in), before sealing, since the agent started.",
		"direction")
	encErrorsDesc = desc("weft_encrypt_errors_total",
		"Packets dropped on this node for reasons that have to do with encryption. Every reason is present, also at 0.", "reason")
	encHandshakesDesc = desc("weft_encrypt_handshakes_total",
		"Exchanges of keys by outcome; served_ marks those that other nodes began.", "outcome")
	encRotationsDesc = desc("weft_encrypt_rotations_total",
		"Epochs that this node made, by reason.", "reason")
	encRekeysDesc = desc("weft_encrypt_kicks_total",
		"Times that a packet without a key asked for an exchange of keys.")
	keysTurnedDesc = desc("weft_keys_refused_connections_total",
		"Connections to the port of exchanges that were closed before a certificate was seen: from an address that no node has, silent, or to make room. Of filtered ones, which the kernel never made, the packets are counted.", "reason")
	encVMForksDesc = desc("weft_encrypt_vm_forks_total",
		"Times that this virtual machine was found to have been resumed from a snapshot or copied, and its keys were destroyed.")
	encKeyAgeDesc = desc("weft_encrypt_key_age_seconds",
		"Age of the oldest key in the datapath.")
	encEngineDesc = desc("weft_encrypt_engine_info",
		"What does the AES-GCM: asked for and active. Always 1.", "asked", "active")
	sealerUpDesc = desc("weft_sealer_up",
		"Whether the sealer runs (engine user). While it does not, the hooks seal.")
	sealerStartsDesc = desc("weft_sealer_starts_total",
		"Sealers that this agent has started; more than one or two say that they die.")
	sealerPacketsDesc = desc("weft_sealer_packets_total",
		"Packets that the sealer sealed (out) and opened (in), since it was started.", "direction")
	sealerBytesDesc = desc("weft_sealer_bytes_total",
		"Bytes of packets that the sealer sealed (out) and opened (in), before sealing, since it was started.", "direction")
	encEpochDesc = desc("weft_encrypt_epoch",
		"Number of the newest epoch that this node uses, 0 for none.")
	encEpochEndDesc = desc("weft_encrypt_epoch_expires_timestamp_seconds",
		"When that epoch reaches its hard TTL.")
	keysTTLDesc = desc("weft_keys_epoch_ttl_ratio",
		"How much of the hard TTL of the epoch in use is over, 0 to 1. At 1 packets are dropped, or weft_keys_epoch_extended is 1.")
	keysExtendedDesc = desc("weft_keys_epoch_extended",
		"1 while keys are in use beyond their epoch's hard TTL, as keys.extendTTL allows.")
	keysRewrapsDesc = desc("weft_keys_rewraps_total",
		"Epochs' keys that this node wrapped again for a new version of the KEK.")
	keysUnwrapDesc = desc("weft_keys_unwrap_errors_total",
		"Attempts at an epoch's key that failed, each with all its calls to the KMS. Every kind is present, also at 0.", "kind")
	kmsUpDesc          = desc("weft_keys_kms_up", "0 when the last call to the KMS failed.")
	encCertificateDesc = desc("weft_encrypt_certificate_expires_timestamp_seconds",
		"When this node's certificate expires.")
)

func describeEncryption(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		encPeersDesc, encQuantumDesc, encPacketsDesc, encBytesDesc, encErrorsDesc,
		encHandshakesDesc, encRotationsDesc,
		encRekeysDesc, encKeyAgeDesc, encEngineDesc, sealerUpDesc, sealerStartsDesc,
		sealerPacketsDesc, sealerBytesDesc, encEpochDesc, encEpochEndDesc, encCertificateDesc,
		keysTurnedDesc, encVMForksDesc, keysTTLDesc, keysExtendedDesc, keysRewrapsDesc,
		keysUnwrapDesc, kmsUpDesc,
	} {
		ch <- d
	}
	kek.NewMeter().Describe(ch)
}

// keyKey names a key over its life.
type keyKey struct {
	node  string
	out   bool
	epoch uint64
	lane  uint8
	id    uint64
}

// sealed keeps sums that only grow, although keys come and go with what they counted.
type sealed struct {
	seen  map[keyKey]datapath.Traffic
	total map[bool]datapath.Traffic // by: out
}

// add takes the keys of one scrape over.
func (s *sealed) add(keys []Key) {
	if s.total == nil {
		s.total = map[bool]datapath.Traffic{}
	}
	now := make(map[keyKey]datapath.Traffic, len(keys))
	for _, k := range keys {
		id := keyKey{k.Node, k.Out, k.Epoch, k.Lane, k.ID}
		before := s.seen[id]
		if k.Packets < before.Packets {
			before = datapath.Traffic{}
		}
		sum := s.total[k.Out]
		sum.Packets += k.Packets - before.Packets
		sum.Bytes += k.Bytes - min(before.Bytes, k.Bytes)
		s.total[k.Out] = sum
		now[id] = k.Traffic
	}
	s.seen = now
}

// encryption shows it; nodeDrops has summed the reasons of this scrape already.
func (c *Collector) encryption(ch chan<- prometheus.Metric, e *Encryption) {
	if e == nil {
		return
	}
	c.sealed.add(e.Keys)
	for direction, out := range map[string]bool{"out": true, "in": false} {
		counter(ch, encPacketsDesc, float64(c.sealed.total[out].Packets), direction)
		counter(ch, encBytesDesc, float64(c.sealed.total[out].Bytes), direction)
	}
	for reason := range e.Reasons {
		sum := uint64(0)
		for _, direction := range directions {
			sum += c.drops[dropKey{reason, direction}]
		}
		counter(ch, encErrorsDesc, float64(sum), reason)
	}
	for state, count := range e.PeerStates {
		gauge(ch, encPeersDesc, float64(count), state)
	}
	for outcome, count := range e.Handshakes {
		counter(ch, encHandshakesDesc, float64(count), outcome)
	}
	for reason, count := range e.Rotations {
		counter(ch, encRotationsDesc, float64(count), reason)
	}
	counter(ch, encRekeysDesc, float64(e.RekeyRequests))
	counter(ch, encVMForksDesc, float64(e.VMForks))
	for reason, count := range e.Turned {
		counter(ch, keysTurnedDesc, float64(count), reason)
	}
	gauge(ch, encQuantumDesc, float64(e.PostQuantum))
	gauge(ch, encKeyAgeDesc, e.KeyAge.Seconds())
	gauge(ch, encEngineDesc, 1, e.EngineAsked, e.Engine)
	gauge(ch, encEpochDesc, float64(e.Epoch))
	moment(ch, encEpochEndDesc, e.EpochExpires)
	moment(ch, encCertificateDesc, e.CertificateExpires)
	gauge(ch, keysTTLDesc, e.TTLRatio)
	gauge(ch, keysExtendedDesc, map[bool]float64{true: 1}[e.Extended])
	counter(ch, keysRewrapsDesc, float64(e.Rewraps))
	for kind, count := range e.UnwrapErrors {
		counter(ch, keysUnwrapDesc, float64(count), kind)
	}
	sealer(ch, e.Sealer)
	kms(ch, e)
}

// sealer shows nothing where the engine has none.
func sealer(ch chan<- prometheus.Metric, s *Sealer) {
	if s == nil {
		return
	}
	gauge(ch, sealerUpDesc, map[bool]float64{true: 1}[s.Up])
	counter(ch, sealerStartsDesc, float64(s.Starts))
	for direction, t := range map[string]datapath.Traffic{"out": s.Sealed, "in": s.Opened} {
		counter(ch, sealerPacketsDesc, float64(t.Packets), direction)
		counter(ch, sealerBytesDesc, float64(t.Bytes), direction)
	}
}

// kms shows nothing while there is no key manager.
func kms(ch chan<- prometheus.Metric, e *Encryption) {
	if e.KMS == nil {
		return
	}
	e.KMS.Collect(ch)
	gauge(ch, kmsUpDesc, map[bool]float64{true: 1}[e.KMSFailing == ""])
}

// moment leaves out what is not known: no alarm shall sound for the year 1.
func moment(ch chan<- prometheus.Metric, desc *prometheus.Desc, at time.Time) {
	if !at.IsZero() {
		gauge(ch, desc, float64(at.Unix()))
	}
}
