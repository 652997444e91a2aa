package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/keys"
)

// encryptReasons are the drop reasons that have to do with encryption.
var encryptReasons = map[string]bool{
	reasonNoKey: true, "key_expired": true, "key_exhausted": true, "seal_failed": true,
	"esp_malformed": true, "esp_fragment": true,
	"esp_unknown_peer": true, "esp_unknown_sa": true, "esp_replayed": true, "esp_bad_tag": true,
	"esp_padding":  true,
	"inner_source": true, "vm_forked": true, "identity_not_on_node": true, "plaintext": true,
	"esp_merged": true, "not_for_sealer": true,
	"sealer_queue_full": true, "sealer_share": true,
}

// Encrypt implements admin.Backend.
func (b *backend) Encrypt(ctx context.Context) (*admin.Encryption, error) {
	out := &admin.Encryption{Node: b.cfg.Node, Mode: b.cfg.Encryption.Mode,
		Peers: []admin.EncryptPeer{}}
	if !b.cfg.Encryption.On() {
		return out, nil
	}
	running, err := b.up()
	if err != nil {
		return nil, err
	}
	sas, err := running.dp.Associations()
	if err != nil {
		return nil, err
	}
	engine := sas.EngineStatus()
	out.Engine = admin.EncryptEngine{Asked: engine.Asked, Active: engine.Active, Why: engine.Why,
		NoSealer: engine.NoSealer, AES: admin.AES(engine.AES)}
	out.Sealer = b.describeSealer()
	forks := sas.VMForkStatus()
	out.VMForks = admin.VMForks{Detection: forks.Detection, Why: forks.Why,
		Generation: forks.Generation}
	out.Port, out.Lanes, out.TrustDomain = b.cfg.Encryption.Port, sas.Lanes(), b.cfg.Keys.TrustDomain
	if out.Plain, err = running.dp.Plain(); err != nil {
		return nil, err
	}
	if out.Errors, err = b.encryptDrops(ctx); err != nil {
		return nil, err
	}
	if err := b.describeKeys(ctx, running, sas, out); err != nil {
		return nil, err
	}
	out.Problems = append(out.Problems, b.encryptProblems()...)
	ix := b.index.Load()
	out.Problems = append(out.Problems,
		plainProblems(identity.Plain(ix.snapshot, ix.remembered()), out.Plain)...)
	return out, nil
}

// plainProblems say in what the datapath is behind the policies and annotations.
func plainProblems(wanted, applied []netip.Prefix) []string {
	var out []string
	if missing := without(wanted, applied); len(missing) > 0 {
		out = append(out, "plain: asked for and not applied yet, so sealed still: "+few(missing))
	}
	if left := without(applied, wanted); len(left) > 0 {
		out = append(out,
			"plain: not asked for any more, and in cleartext until that is applied: "+few(left))
	}
	return out
}

// without are the ranges of one list that the other lacks.
func without(list, other []netip.Prefix) []netip.Prefix {
	has := make(map[netip.Prefix]bool, len(other))
	for _, p := range other {
		has[p.Masked()] = true
	}
	return slices.DeleteFunc(slices.Clone(list),
		func(p netip.Prefix) bool { return has[p.Masked()] })
}

// few names one of several, not to fill a status with one trouble.
func few(list []netip.Prefix) string {
	if len(list) == 1 {
		return list[0].String()
	}
	return fmt.Sprintf("%s and %d more", list[0], len(list)-1)
}

// encryptDrops sums the drops of the node by reason.
func (b *backend) encryptDrops(ctx context.Context) ([]admin.Drop, error) {
	rows, err := b.Drops(ctx, false)
	if err != nil {
		return nil, err
	}
	sums := map[string]admin.Drop{}
	for _, row := range rows {
		if !encryptReasons[row.Reason] {
			continue
		}
		sum := sums[row.Reason]
		row.Packets += sum.Packets
		row.Bytes += sum.Bytes
		row.Endpoint, row.Direction = "", ""
		sums[row.Reason] = row
	}
	var out []admin.Drop
	for _, row := range sums {
		out = append(out, row)
	}
	slices.SortFunc(out, func(x, y admin.Drop) int {
		return cmp.Or(cmp.Compare(y.Packets, x.Packets), cmp.Compare(x.Reason, y.Reason))
	})
	return out, nil
}

// encryptProblems are the agent's own that have to do with encryption.
func (a *Agent) encryptProblems() []string {
	a.stateLock.Lock()
	defer a.stateLock.Unlock()
	var out []string
	for _, what := range []string{"keys", "VM forks", "certificate renewal", "identities", "paths",
		"path probes", "pod mtu", "sealer"} {
		if text := a.problems[what]; text != "" {
			out = append(out, text)
		}
	}
	return out
}

// describeKeys fills in what the key manager and the datapath's keys tell.
func (b *backend) describeKeys(ctx context.Context, running *node, sas Associations,
	out *admin.Encryption) error {
	status, certificate := b.keysStatus(ctx)
	out.Certificate = certificate
	traffic, err := keyTraffic(sas)
	if err != nil {
		return err
	}
	identities := *b.identities.Load()
	byName := map[string]keys.PeerStatus{}
	if status != nil {
		out.Epoch, out.OldestKey, out.Problems = newestEpoch(status), status.OldestKey, managerProblems(status)
		out.Handshakes, out.FailedHandshakes = handshakes(&status.Counters)
		for _, count := range status.Counters.Rotations {
			out.Rotations += count
		}
		for _, p := range status.Peers {
			byName[p.Name] = p
		}
	}
	unreachable := nodeProblems(running.dp)
	for _, peer := range peers(b.index.Load().snapshot.Nodes, b.cfg.Node) {
		row := b.describePeer(running, peer, byName[peer.Name], traffic[peer.Name])
		row.Identities = len(identities[peer.Name])
		row.Problem = cmp.Or(unreachable[peer.Name], row.Problem)
		out.Peers = append(out.Peers, row)
	}
	for _, t := range traffic {
		add(&out.Sent, t.sent)
		add(&out.Received, t.received)
	}
	return nil
}

func (b *backend) describePeer(running *node, peer datapath.Node, status keys.PeerStatus,
	traffic peerTraffic) admin.EncryptPeer {
	row := admin.EncryptPeer{
		Node: peer.Name, State: cmp.Or(status.State, keys.StateNoKey), SendEpoch: status.EpochTX,
		ReceiveEpoch: status.EpochRX,
		Handshake:    status.Exchanged, PostQuantum: status.PostQuantum, Group: status.Group,
		Expires:   status.Expires,
		Installed: traffic.installed, Sent: traffic.sent, Received: traffic.received,
		Path: b.paths.get(peer.Name), Problem: status.LastError,
	}
	if addr, ok := outerAddr(peer, running.object.Spec.Addresses); ok {
		row.Address, row.Outer = addr, "IPv6"
		if addr.Is4() {
			row.Outer = "IPv4"
		}
		row.MTU = inet.SealedMTU(running.links.MTU, addr.Is6())
	} else {
		row.Problem = "it has no address of a family that this node has: nothing can be sealed for it"
	}
	return row
}

// keysStatus is nil while there is no key manager.
func (b *backend) keysStatus(ctx context.Context) (*keys.Status, *admin.NodeCertificate) {
	ring := b.keys.Load()
	if ring == nil {
		return nil, nil
	}
	certificate := &admin.NodeCertificate{}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	cert, err := ring.certificate(ctx)
	if cert != nil {
		certificate.NotAfter = cert.NotAfter
		if len(cert.URIs) == 1 {
			certificate.ID = cert.URIs[0].String()
		}
	}
	if err != nil {
		certificate.Problem = err.Error()
	}
	status := ring.Status()
	return &status, certificate
}

// managerProblems are those of the key manager, and the epochs that it cannot read.
func managerProblems(s *keys.Status) []string {
	return slices.Concat(s.Problems, failedEpochs(s))
}

// keyProblems are those of the key manager and of this node's certificate.
func (b *backend) keyProblems(ctx context.Context) []string {
	status, certificate := b.keysStatus(ctx)
	if status == nil {
		return nil
	}
	var out []string
	for _, problem := range managerProblems(status) {
		out = append(out, "keys: "+problem)
	}
	if certificate.Problem != "" {
		out = append(out, certificate.Problem)
	}
	return out
}

// newestEpoch is the epoch that this node uses.
func newestEpoch(s *keys.Status) *admin.EncryptEpoch {
	for _, e := range s.Epochs {
		if e.Number == s.Epoch {
			return &admin.EncryptEpoch{Number: e.Number, Created: e.Created, Expires: e.Expires,
				KEK: e.KEK, KEKVersion: e.KEKVersion}
		}
	}
	return nil
}

// handshakes counts exchanges by whether they were good. One that gave way to the peer's own was
// not needed.
func handshakes(c *keys.Counters) (good, failed uint64) {
	for outcome, count := range c.Handshakes {
		switch strings.TrimPrefix(outcome, "served_") {
		case "ok":
			good += count
		case "busy":
		default:
			failed += count
		}
	}
	return good, failed
}

// peerTraffic is what passed the keys shared with a peer that are still there.
type peerTraffic struct {
	sent, received datapath.Traffic
	installed      time.Time
}

func keyTraffic(sas Associations) (map[string]peerTraffic, error) {
	list, err := sas.SAs()
	if err != nil {
		return nil, fmt.Errorf("read keys of the datapath: %w", err)
	}
	out := map[string]peerTraffic{}
	for _, sa := range list {
		t := out[sa.Node]
		passed := datapath.Traffic{Packets: sa.Packets, Bytes: sa.Bytes}
		if sa.Out {
			add(&t.sent, passed)
		} else {
			add(&t.received, passed)
		}
		if t.installed.IsZero() || sa.Installed.Before(t.installed) {
			t.installed = sa.Installed
		}
		out[sa.Node] = t
	}
	return out, nil
}

func add(sum *datapath.Traffic, t datapath.Traffic) {
	sum.Packets += t.Packets
	sum.Bytes += t.Bytes
}

// encryptionLine is encryption in one line of `weft status`.
func (b *backend) encryptionLine(running *node) string {
	if !b.cfg.Encryption.On() {
		return "off: packets to other nodes travel in cleartext"
	}
	count := len(peers(b.index.Load().snapshot.Nodes, b.cfg.Node))
	sas, err := running.dp.Associations()
	if err != nil {
		return fmt.Sprintf("%s: %v", b.cfg.Encryption.Mode, err)
	}
	line := fmt.Sprintf("%s, %s engine", b.cfg.Encryption.Mode,
		cmp.Or(sas.EngineStatus().Active, "no"))
	ring := b.keys.Load()
	if ring == nil {
		if count > 0 {
			return fmt.Sprintf("%s, no keys for %d peers: %s", line, count, b.keysProblem())
		}
		return line + ", no peers"
	}
	status := ring.Status()
	sealed, quantum := 0, 0
	for _, p := range status.Peers {
		if p.EpochTX != 0 && p.EpochRX != 0 {
			sealed++
		}
		if p.PostQuantum {
			quantum++
		}
	}
	return fmt.Sprintf("%s, epoch %d, %d of %d peers sealed, %d post-quantum: `weft encrypt status` tells more", line, status.Epoch, sealed, count, quantum)
}
