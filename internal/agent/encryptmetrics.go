package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/metrics"
)

// encryptMetrics are what a scrape shows of encryption, nil when it is off.
func (a *Agent) encryptMetrics(running *node) (*metrics.Encryption, error) {
	if !a.cfg.Encryption.On() {
		return nil, nil
	}
	sas, err := running.dp.Associations()
	if err != nil {
		return nil, err
	}
	engine := sas.EngineStatus()
	out := &metrics.Encryption{EngineAsked: engine.Asked, Engine: engine.Active,
		Sealer: a.sealerMetrics(), Reasons: encryptReasons}
	list, err := sas.SAs()
	if err != nil {
		err = fmt.Errorf("read keys of the datapath: %w", err)
	}
	for _, sa := range list {
		out.Keys = append(out.Keys,
			metrics.Key{Node: sa.Node, Out: sa.Out, Epoch: sa.Number, Lane: sa.Lane, ID: sa.ID,
				Traffic: datapath.Traffic{Packets: sa.Packets, Bytes: sa.Bytes}})
	}
	ring := a.keys.Load()
	if ring == nil {
		return out, err
	}
	status := ring.Status()
	out.KMS = ring.kms
	epochMetrics(out, &status)
	peerMetrics(out, &status)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	certificate, errCertificate := ring.certificate(ctx)
	if certificate != nil {
		out.CertificateExpires = certificate.NotAfter
	}
	return out, errors.Join(err, errCertificate)
}

// epochMetrics are of the epochs and the KMS that wraps their keys.
func epochMetrics(out *metrics.Encryption, status *keys.Status) {
	counters := &status.Counters
	out.Epoch, out.Rotations, out.Rewraps = status.Epoch, counters.Rotations, counters.Rewraps
	out.TTLRatio, out.KMSFailing = status.TTLRatio, status.KMS.Failing
	out.Extended = slices.ContainsFunc(status.Epochs,
		func(e epochs.Status) bool { return !e.Extended.IsZero() })
	out.UnwrapErrors = map[string]uint64{}
	for _, kind := range kek.Outcomes() {
		if kind != "ok" {
			out.UnwrapErrors[kind] = counters.UnwrapErrors[kind]
		}
	}
	out.KeyAge = time.Duration(status.OldestKeySeconds) * time.Second
	if e := newestEpoch(status); e != nil {
		out.EpochExpires = e.Expires
	}
}

// peerMetrics are of the exchanges of keys and of whom they are with.
func peerMetrics(out *metrics.Encryption, status *keys.Status) {
	counters, turned := &status.Counters, status.Counters.Turned
	out.Handshakes, out.RekeyRequests, out.VMForks = counters.Handshakes, counters.RekeyRequests, counters.VMForks
	out.Turned = map[string]uint64{
		"filtered": turned.Filtered, "unknown_source": turned.Unknown, "silent": turned.Silent,
		"evicted": turned.Evicted,
	}
	out.PeerStates = map[string]int{}
	for _, state := range keys.States() {
		out.PeerStates[state] = 0
	}
	for _, p := range status.Peers {
		out.PeerStates[p.State]++
		if p.PostQuantum {
			out.PostQuantum++
		}
	}
}
