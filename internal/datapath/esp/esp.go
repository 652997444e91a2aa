// Package esp keeps the security associations that the programs seal and open ESP with: their keys,
// counters and replay windows, the engine that does the AES-GCM, and with which epoch each peer is
// sent to. It voids keys that a fork of this virtual machine has made unsafe. How a peer is
// reached, and when its keys change, others say.
package esp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/inet"
)

// Options says how what crosses between nodes for a pod is sealed.
type Options struct {
	// Engine is auto, bpf, kmod or user.
	Engine string
	// NoSealer is why engine auto does without a sealer, "" for one: see EngineStatus.
	NoSealer string
	// AllowTableAES lets engine bpf run on an AES whose time depends on the key.
	AllowTableAES bool
	// Port is the UDP port of ESP on every node (RFC 3948).
	Port uint16
	// Lanes is how many keys the hooks of this node seal with side by side, 0 for one per CPU up to
	// 8. A sealer has one more.
	Lanes int
}

// Host is where SAs are kept and used.
type Host struct {
	// Maps stay the caller's.
	Maps *bpf.Maps
	// PinDir is where the trace of VM forks is pinned; without one they are not watched for.
	PinDir string
	// Pieces says that XDP programs see frames in more than one piece.
	Pieces bool
	// Expedite shortens the kernel's grace periods until what it returns is called. Optional.
	Expedite func() (end func())
	Log      *slog.Logger
}

// Associations are the SAs of a node and all that belongs to them: weft_sa_out, weft_sa_in,
// weft_sa_used, weft_sa_nodes, weft_peers and weft_vm, which nobody else writes. They outlive it.
// Safe for concurrent use. It calls nobody with its lock held who would call it.
type Associations struct {
	opts *Options // nil: encryption is off
	host Host
	maps *bpf.Maps
	log  *slog.Logger
	fork vmFork // as it was opened

	mu     sync.Mutex // guards the maps' contents and all below
	peers  map[string]uint32
	writer writer
	sealer sealerKeys
	closed bool
}

// Open takes over the SAs of a previous run: it watches for VM forks, loads the programs that
// change SAs, chooses the engine, and destroys what a crash left half-removed or a fork has voided.
// Without options encryption is off: then no SA can be installed.
func Open(host Host, opts *Options) (*Associations, error) {
	a := &Associations{opts: opts, host: host, maps: host.Maps, log: host.Log,
		peers: map[string]uint32{}, sealer: newSealerKeys()}
	if opts == nil {
		return a, nil
	}
	if err := a.open(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Associations) open() error {
	if a.host.PinDir != "" {
		if err := a.openVMFork(); err != nil {
			return err
		}
	}
	if err := a.openWriter(); err != nil {
		return err
	}
	_, err := a.retireForked()
	return err
}

func (a *Associations) openWriter() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.writer.open(a.maps); err != nil {
		return fmt.Errorf("prepare encryption: %w", err)
	}
	if err := a.writer.choose(a.opts, a.host.Pieces); err != nil {
		return err
	}
	for _, out := range []bool{true, false} {
		var dead []uint32
		err := a.eachSA(out, func(id uint32, sa *entry) {
			if sa.state != bpf.SaLive {
				dead = append(dead, id)
			}
		})
		if err := errors.Join(err, a.retire(out, dead)); err != nil {
			return err
		}
	}
	return nil
}

// Close lets go of file descriptors. The SAs stay, and traffic with them; what changes or lists
// them fails with ErrClosed from then on.
func (a *Associations) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.writer.close()
		a.sealer.close()
		a.fork.close()
	}
	a.closed = true
	return nil
}

// usable is why SAs can be neither changed nor read, nil if they can. Callers hold a.mu.
func (a *Associations) usable() error {
	switch {
	case a.closed:
		return ErrClosed
	case a.writer.collection == nil:
		return ErrEncryptionOff
	}
	return nil
}

// EngineStatus says which engine runs and why.
func (a *Associations) EngineStatus() EngineStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writer.status
}

// Lanes is how many keys this node seals with side by side, the sealer's included, which is the
// highest.
func (a *Associations) Lanes() int {
	if a.HasSealer() {
		return a.hookLanes() + 1
	}
	return a.hookLanes()
}

// hookLanes are those that the hooks seal on.
func (a *Associations) hookLanes() int {
	most := maxLanes
	if a.HasSealer() {
		most--
	}
	if a.opts != nil && a.opts.Lanes > 0 {
		return min(a.opts.Lanes, most)
	}
	return min(ebpf.MustPossibleCPU(), 8)
}

// EnterPeer says which index a peer has. Until then, and after LeavePeer, its SAs are refused.
func (a *Associations) EnterPeer(name string, index uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peers[name] = index
}

// LeavePeer takes a peer's name from its index. What is under that stays until RemoveAllSAs.
func (a *Associations) LeavePeer(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.peers, name)
}

// SetTunnel says how packets for a peer are sealed: everything but the key, which SealWith chooses.
func (a *Associations) SetTunnel(index uint32, local, remote netip.Addr,
	wireMTU int) (changed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changePeer(index, func(p *bpf.Peer) {
		p.Local, p.Remote = bpf.ToAddr(local), bpf.ToAddr(remote)
		p.Family, p.Mtu = 4, uint16(inet.SealedMTU(wireMTU, remote.Is6()))
		if remote.Is6() {
			p.Family = 6
		}
	})
}

// ClearTunnel forgets how packets for an index are sealed, and with which epoch.
func (a *Associations) ClearTunnel(index uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, err := a.changePeer(index, func(p *bpf.Peer) { *p = bpf.Peer{} })
	return err
}

// changePeer changes a part of how a peer is sealed for and leaves the rest.
func (a *Associations) changePeer(index uint32, change func(*bpf.Peer)) (changed bool, err error) {
	var now bpf.Peer
	if err := a.maps.Peers.Lookup(index, &now); err != nil {
		return false, fmt.Errorf("read peers map: %w", err)
	}
	want := now
	if change(&want); want == now {
		return false, nil
	}
	if err := a.maps.Peers.Put(index, &want); err != nil {
		return false, fmt.Errorf("write peers map: %w", err)
	}
	return true, nil
}

// PeerNames says whose SAs are under which index, from the pinned map: also before EnterPeer.
func (a *Associations) PeerNames() (map[uint32]string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.names()
}

// HeldPeers adds the indexes under which there are SAs or a name.
func (a *Associations) HeldPeers(held map[uint32]bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	names, err := a.names()
	for index := range names {
		held[index] = true
	}
	for _, out := range []bool{true, false} {
		err = errors.Join(err, a.eachSA(out, func(id uint32, _ *entry) { held[id>>10] = true }))
	}
	return err
}

// RemoveAllSAs forgets every key under an index, and whose it is.
func (a *Associations) RemoveAllSAs(index uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.usable(); err != nil {
		return err
	}
	return a.removeAll(index)
}
