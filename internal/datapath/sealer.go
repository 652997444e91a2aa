package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/netdev"
)

// openSealer makes the sealer's tap, or takes away what an earlier run had made. Whether packets
// are given to it stays as it was: a sealer outlives the agent.
func (d *Datapath) openSealer() error {
	if !d.sas.HasSealer() {
		return d.withoutSealer()
	}
	if err := d.PrepareSealer(); err != nil {
		if d.opts.Encrypt.Engine == esp.EngineUser {
			return err
		}
		d.log.Warn("no sealer runs, the hooks seal what comes in bulk", "err", err)
		d.sas.UseSealer(err.Error())
		return d.withoutSealer()
	}
	gro, err := openSealerGRO(d.opts.Encrypt.Port, d.opts.HostAddrs)
	if err != nil {
		// Slower, and as safe.
		d.log.Warn("packets of other nodes' sealers are not merged on arrival", "err", err)
		return nil
	}
	d.gro = gro
	return nil
}

// withoutSealer takes away what an earlier run had made: first nothing is given to the sealer any
// more, and it has its hooks as long as it has its tap.
func (d *Datapath) withoutSealer() error {
	d.sealerIndex.Store(0)
	var was bpf.Config
	err := d.maps.Config.Lookup(uint32(0), &was)
	if err == nil && was.SealerIfindex != 0 {
		was.SealerIfindex = 0
		err = d.maps.Config.Put(uint32(0), &was)
	}
	if err != nil {
		return fmt.Errorf("give nothing to the sealer: %w", err)
	}
	return errors.Join(d.sas.UnmarkSealer(), netdev.RemoveSealer(), d.links().Drop(netdev.Sealer))
}

// PrepareSealer makes the sealer's tap, with its hooks, if it is not there. While a hold is on, the
// tap keeps the hooks of the agent before: those of this one do not know the endpoints yet that the
// sealer opens packets for.
func (d *Datapath) PrepareSealer() error { return d.prepareSealer(d.hold.isOn()) }

// attachSealer gives the tap the hooks of this run once a hold has ended.
func (d *Datapath) attachSealer() error {
	if d.sealerIndex.Load() == 0 {
		return nil
	}
	return d.prepareSealer(false)
}

func (d *Datapath) prepareSealer(held bool) error {
	hooks, err := d.progs.Sealer()
	if err != nil {
		return err
	}
	index, err := netdev.EnsureSealer(func(tap netlink.Link) error {
		name, index := tap.Attrs().Name, tap.Attrs().Index
		if held && d.links().Check(name, index, hooks) == nil {
			return nil
		}
		return d.links().Ensure(name, index, hooks)
	})
	if err != nil {
		return err
	}
	d.sealerIndex.Store(index)
	return nil
}

// OpenSealerTap opens the tap for a sealer; netdev.ErrSealerInUse says that one reads it.
func (d *Datapath) OpenSealerTap() (*os.File, error) { return netdev.OpenSealer() }

// RemoveSealerTap takes the tap away, with its hooks and whoever reads it.
func (d *Datapath) RemoveSealerTap() error { return netdev.RemoveSealer() }

// SealerLost is how many frames the sealer's queue had no room for, since the tap was made.
func (d *Datapath) SealerLost() (uint64, error) { return netdev.SealerLost() }

// SetSealer says whether the programs may give packets to the sealer: it runs, and holds the keys
// that are marked.
func (d *Datapath) SetSealer(on bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := uint32(0)
	if on {
		want = d.sealerIndex.Load()
		// Whatever an earlier one owes, this one does not.
		err := errors.Join(d.maps.Sealer.Put(uint32(0), &bpf.SealerState{}),
			d.maps.SealerQueue.Put(uint32(0), &bpf.SealerQueue{}))
		if err != nil {
			return fmt.Errorf("write the sealer's state: %w", err)
		}
	}
	if d.config.SealerIfindex == want {
		return nil
	}
	d.config.SealerIfindex = want
	return d.writeConfig()
}
