package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/store"
)

// How long a node that has an epoch waits for its peers before it is ready without some of
// them: one that is down must not keep another from starting.
const peersPatience = 5 * time.Second

// reasonNoKey is the drop reason at which a peer is asked for keys at once.
const reasonNoKey = "no_key"

// runKeys runs the key manager, and opens it again when that fails: a certificate or a
// key-encryption key may come any time.
func (a *Agent) runKeys(ctx context.Context, n *node) {
	a.keep(ctx, "keys", func(ctx context.Context) error {
		first := a.awaitPeers(ctx)
		if first == nil {
			return nil
		}
		sas, err := n.dp.Associations()
		if err != nil {
			return err
		}
		ring, err := a.seams.openKeys(ctx,
			keyParts{cfg: a.cfg, store: a.store, sas: sas, log: a.log,
				addresses: n.object.Spec.Addresses})
		if err != nil {
			return err
		}
		defer ring.close()
		ring.SetPeers(first)
		a.keys.Store(ring)
		defer a.keys.Store(nil)
		a.owe(allWork)
		ctx, cancel := context.WithCancel(ctx)
		var background sync.WaitGroup
		defer background.Wait()
		defer cancel()
		if ring.renew != nil {
			background.Go(func() { ring.renew(ctx, a.renewed) })
		}
		background.Go(func() {
			a.keep(ctx, "VM forks",
				func(ctx context.Context) error { return sas.VMForks(ctx, ring.Forked) })
		})
		return ring.Run(ctx)
	})
}

// renewed is told how each attempt to renew the certificate went.
func (a *Agent) renewed(err error) {
	if err != nil {
		err = fmt.Errorf("renew the node's certificate: %w", err)
	}
	a.problem("certificate renewal", err)
}

// awaitPeers waits for other nodes that the datapath knows, nil when ctx ends. A node alone
// needs no keys, and no certificate.
func (a *Agent) awaitPeers(ctx context.Context) []keys.Peer {
	for {
		if known := a.synced.Load(); known != nil && len(*known) > 0 {
			return *known
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(keysLook):
		}
	}
}

// syncEncryption tells the datapath what may be plain and who is where, and the key
// manager whom to meet. The peers are in the datapath already.
func (a *Agent) syncEncryption(n *node, ix *index, todo work) error {
	if !a.cfg.Encryption.On() {
		return nil
	}
	ring := a.keys.Load()
	if todo.nodes {
		known := keyPeers(peers(ix.snapshot.Nodes, a.cfg.Node), n.object.Spec.Addresses)
		a.synced.Store(&known)
		if ring != nil {
			ring.SetPeers(known)
		}
		a.checkMTU(n, ix.snapshot)
	}
	if todo.epochs && ring != nil {
		ring.StoreChanged()
	}
	var errIdentities, errPlain error
	if todo.identities {
		errIdentities = a.syncIdentities(n, ix)
	}
	if todo.plain {
		if errPlain = n.dp.SetPlain(identity.Plain(ix.snapshot, ix.remembered())); errPlain != nil {
			errPlain = fmt.Errorf("set what may be plain: %w", errPlain)
		}
	}
	return errors.Join(errIdentities, errPlain)
}

func (a *Agent) syncIdentities(n *node, ix *index) error {
	identities, problems := identity.OfNodes(ix.snapshot, a.cfg.Keys.TrustDomain)
	delete(identities, a.cfg.Node)
	a.problem("identities", firstOf(problems))
	if err := n.dp.SetPeerIdentities(identities); err != nil {
		return fmt.Errorf("set identities of peers: %w", err)
	}
	a.identities.Store(&identities)
	return nil
}

// firstOf is one error of several sentences, not to fill the status with one mistake made often.
func firstOf(problems []string) error {
	switch len(problems) {
	case 0:
		return nil
	case 1:
		return errors.New(problems[0])
	}
	return fmt.Errorf("%s (and %d more like this)", problems[0], len(problems)-1)
}

// checkMTU tells when a node has come that pods' packets do not fit the way to: one without
// IPv4, on nodes that had it all.
func (a *Agent) checkMTU(n *node, snapshot *store.Snapshot) {
	mtu, err := PodMTU(a.cfg, n.links.MTU, n.object, snapshot)
	if err == nil && mtu < n.mtu {
		err = fmt.Errorf("mtu: pods have %d, and packets to a node without an IPv4 address fit when they have %d: restart the agent and make the pods anew, or set mtu", n.mtu, mtu)
	}
	a.problem("pod mtu", err)
}

// keysWaiting says what keeps a node that seals from reaching its peers, "" if nothing does.
// A node without peers needs no keys.
func (a *Agent) keysWaiting(ctx context.Context, snapshot *store.Snapshot) string {
	if !a.cfg.Encryption.On() || len(peers(snapshot.Nodes, a.cfg.Node)) == 0 {
		return ""
	}
	const off = ", or set encryption.mode: \"off\" to route in cleartext"
	ring := a.keys.Load()
	if ring == nil {
		if text := a.keysProblem(); text != keysOpening {
			return "the keys for other nodes: " + text + off
		}
		return "the keys for other nodes: " + keysOpening
	}
	// SPIRE's first answer may take as long as it likes; we look again.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := ring.certificate(ctx); err != nil {
		return fmt.Sprintf("the node's certificate: %v%s", err, off)
	}
	status := ring.Status()
	if !status.Ready || status.Epoch == 0 {
		return "an epoch that this node can read: " + epochProblem(&status)
	}
	if a.epochSince.IsZero() {
		a.epochSince = time.Now()
	}
	if late := firstContact(&status); len(late) > 0 && time.Since(a.epochSince) < peersPatience {
		return "keys with " + strings.Join(late, ", ")
	}
	return ""
}

// keysOpening is said while nothing is wrong yet.
const keysOpening = "they are being opened"

// keysProblem is why there is no key manager.
func (a *Agent) keysProblem() string {
	a.stateLock.Lock()
	defer a.stateLock.Unlock()
	if text := a.problems["keys"]; text != "" {
		return strings.TrimPrefix(text, "keys: ")
	}
	return keysOpening
}

// epochProblem is why no epoch can be used, as the manager tells it.
func epochProblem(s *keys.Status) string {
	if failed := failedEpochs(s); len(failed) > 0 {
		return failed[0]
	}
	if len(s.Problems) > 0 {
		return strings.Join(s.Problems, "; ")
	}
	if s.KMS.Failing != "" {
		return "none has been made yet, the KMS fails: " + s.KMS.Failing + "; it is tried again"
	}
	if s.Leader != "" {
		return "none has been made yet; node " + s.Leader + " makes them"
	}
	return "none has been made yet"
}

// failedEpochs says of each epoch whose key this node cannot unwrap, why.
func failedEpochs(s *keys.Status) []string {
	var out []string
	for _, e := range s.Epochs {
		if e.Error != "" {
			out = append(out, fmt.Sprintf("epoch %d: %s", e.Number, e.Error))
		}
	}
	return out
}

// firstContact are the peers that this node is still trying for the first time.
func firstContact(s *keys.Status) []string {
	var names []string
	for _, p := range s.Peers {
		if p.State == keys.StateNoKey && p.LastError == "" {
			names = append(names, p.Name)
		}
	}
	return names
}

// requestRekey asks a peer for keys when a packet for it was dropped for want of one.
func (a *Agent) requestRekey(event datapath.FlowEvent) {
	if event.Type != datapath.EventDrop || event.Reason != reasonNoKey {
		return
	}
	ring := a.keys.Load()
	if ring == nil {
		return
	}
	if name := a.index.Load().nodeOf(event.Dst.Addr().Unmap()); name != "" && name != a.cfg.Node {
		ring.RequestRekey(name)
	}
}

// identityOf is the number of a workload identity. Most are known from the snapshot; a new
// one is given a number in the store.
func (a *Agent) identityOf(namespace, serviceAccount string,
	labels map[string]string) (uint32, error) {
	id := identity.ID{
		TrustDomain: a.cfg.Keys.TrustDomain, Namespace: namespace, ServiceAccount: serviceAccount,
		Labels: a.labelFilter().Of(labels),
	}
	if number, ok := a.index.Load().numbers[id.Key()]; ok {
		return number, nil
	}
	shared, ok := a.store.(store.IdentityStore)
	if !ok {
		return 0, errors.New("this store cannot keep identities: use store.dir")
	}
	return identity.Allocate(shared, id)
}
