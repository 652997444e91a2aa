package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
)

// Why there are no associations.
var (
	ErrClosed        = esp.ErrClosed
	ErrEncryptionOff = esp.ErrEncryptionOff
)

// Associations are the SAs of this node; they are closed with the datapath. The error is ErrClosed
// or ErrEncryptionOff.
func (d *Datapath) Associations() (*esp.Associations, error) {
	switch {
	case d.closed.Load():
		return nil, ErrClosed
	case d.opts.Encrypt == nil:
		return nil, ErrEncryptionOff
	}
	return d.sas, nil
}

// openEncryption makes what sealing needs besides the programs, or takes away what an earlier run
// had made.
func (d *Datapath) openEncryption() error {
	if err := d.openAssociations(d.opts.BPFDir); err != nil {
		return err
	}
	if d.opts.Encrypt == nil {
		return errors.Join(detachVMFork(d.opts.BPFDir), d.links().Drop(netdev.SegmentationOut),
			netdev.RemoveSegmentation(),
			d.openSealer())
	}
	var err error
	d.segment.host, d.segment.net, err = netdev.EnsureSegmentation(func(out netlink.Link) error {
		return d.links().Ensure(out.Attrs().Name, out.Attrs().Index,
			d.progs.At(hook.Segmentation, hook.ByTC))
	})
	if err != nil {
		return err
	}
	return d.openSealer()
}

func (d *Datapath) openAssociations(pinDir string) (err error) {
	d.sas, err = esp.Open(esp.Host{
		Maps: d.maps, PinDir: pinDir, Pieces: d.mode.Active == ModeXDP && d.needsFrags(),
		Expedite: d.expedite.begin, Log: d.log,
	}, d.opts.Encrypt)
	return err
}

// detachVMFork takes the trace of VM forks out of the kernel, as of a run that was killed while
// pinning.
func detachVMFork(dir string) error {
	pin := filepath.Join(dir, esp.ForkPin)
	return errors.Join(hook.Detach(pin), hook.Detach(pin+"-new"))
}

// segmentLinks are the indexes of weft_host and weft_net, if packets are sealed.
type segmentLinks struct{ host, net uint32 }

// SetPlain makes the given ranges, and no others, the ones that may travel in cleartext, as source
// or destination.
func (d *Datapath) SetPlain(prefixes []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := map[bpf.RouteKey]bool{}
	for _, p := range prefixes {
		want[bpf.RouteKeyOf(p)] = true
	}
	moved, err := bpf.SyncSet(d.maps.Plain, want)
	if err != nil {
		err = fmt.Errorf("plain ranges: %w", err)
	}
	if moved {
		err = errors.Join(err, d.changed())
	}
	return err
}

// Plain are the ranges that may travel in cleartext now, in order.
func (d *Datapath) Plain() ([]netip.Prefix, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []netip.Prefix
	var key bpf.RouteKey
	var value uint8
	entries := d.maps.Plain.Iterate()
	for entries.Next(&key, &value) {
		out = append(out, bpf.PrefixOf(key))
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read plain ranges: %w", err)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out, nil
}

// SetPeerIdentities says which identities' pods each node hosts: what it seals under another is
// refused.
func (d *Datapath) SetPeerIdentities(nodes map[string][]uint32) error {
	return d.hops.SetPeerIdentities(nodes)
}
