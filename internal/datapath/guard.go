package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
)

// guardIface is where pre_routing and post_routing are: not hooked to an interface but to netfilter, once per
// address family, they cover every interface of the network namespace. Their pins are named like those of
// interfaces' hooks.
const guardIface = "all"

// guard is one of the two. A netfilter link's program cannot be replaced, and no two BPF programs may have one
// priority, so an upgrade attaches the new program at another one, from first on. The kernel frees a priority some
// time after its link is gone.
type guard struct {
	name    string
	hook    link.NetfilterInetHook
	program *ebpf.Program
	first   int32
}

const guardPriorities = 16

// guards are what is attached: before everything else on the way in, reassembly included (-400), and behind
// everything else on the way out, source translation included.
func (d *Datapath) guards() []guard {
	return []guard{
		{"post_routing", link.NetfilterInetPostRouting, d.progs.PostRouting, 1000},
		{"pre_routing", link.NetfilterInetPreRouting, d.progs.PreRouting, -1000},
	}
}

var guardFamilies = []struct {
	kind   string
	family link.NetfilterProtocolFamily
}{
	{"netfilter4", link.NetfilterProtoIPv4},
	{"netfilter6", link.NetfilterProtoIPv6},
}

// attachGuard makes this run's programs the ones that are attached, if packets are sealed. There is no
// moment without one.
func (d *Datapath) attachGuard() error {
	for _, g := range d.guards() {
		for _, f := range guardFamilies {
			path := linkPath(d.opts.BPFDir, g.name, f.kind, guardIface)
			if d.opts.Encrypt == nil {
				if err := detach(path); err != nil {
					return err
				}
				continue
			}
			if err := g.replace(path, f.family, d.step); err != nil {
				return fmt.Errorf("attach %s (%s): %w (the kernel needs CONFIG_NETFILTER_BPF_LINK, Linux 6.4)", g.name, f.kind, err)
			}
		}
	}
	return nil
}

// replace attaches and pins the new link beside the old one, and takes the old one's name with it. An agent that died
// in between has left both, or the new one alone under its own name.
func (g guard) replace(path string, family link.NetfilterProtocolFamily, step func(string) error) error {
	fresh := path + "+"
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		if err := os.Rename(fresh, path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("take over %s: %w", fresh, err)
		}
	}
	if err := detach(fresh); err != nil {
		return err
	}
	old, err := link.LoadPinnedLink(path, nil)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open pinned link: %w", err)
	}
	if old != nil {
		defer old.Close() // its last reference, once the pin is another's
	}
	attached, err := g.attach(family)
	if err != nil {
		return err
	}
	defer attached.Close()
	if err := attached.Pin(fresh); err != nil {
		return fmt.Errorf("pin: %w", err)
	}
	if err := step("guard pinned"); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// attach takes the first priority that is free.
func (g guard) attach(family link.NetfilterProtocolFamily) (attached link.Link, err error) {
	for priority := g.first; priority < g.first+guardPriorities; priority++ {
		attached, err = link.AttachNetfilter(link.NetfilterOptions{
			Program: g.program, ProtocolFamily: family, Hook: g.hook, Priority: priority,
		})
		if !errors.Is(err, unix.EBUSY) {
			return attached, err
		}
	}
	return nil, err
}

// putUplink enters an uplink that has its hooks, so that what comes in or leaves by it is known to have
// passed them.
func (d *Datapath) putUplink(ifindex int) error {
	if err := d.maps.Uplinks.Put(uint32(ifindex), uint8(1)); err != nil {
		return fmt.Errorf("enter uplink %d: %w", ifindex, err)
	}
	return nil
}

// keepUplinks removes every interface but these from the uplinks.
func (d *Datapath) keepUplinks(ifindexes map[uint32]bool) error {
	return bpf.DeleteWhere(d.maps.Uplinks, func(index uint32, _ uint8) bool { return !ifindexes[index] })
}
