package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
)

// Cleanup takes away what Open and the other methods left on the machine: links, maps, routes, and
// changed sysctls. It needs no running datapath and is not an error if there is nothing. Endpoints'
// interfaces are their owner's business.
func Cleanup(bpfDir, stateDir string, log *slog.Logger) error {
	links, err := hook.List(bpfDir)
	for _, l := range links {
		if strings.HasPrefix(l.Iface, netdev.SecondPrefix) {
			if second, findErr := netlink.LinkByName(l.Iface); findErr == nil {
				err = errors.Join(err, netlink.LinkDel(second))
			}
		}
		err = errors.Join(err, hook.Detach(l.Path))
	}
	err = errors.Join(err, detachVMFork(bpfDir))
	pins, _ := filepath.Glob(filepath.Join(bpfDir, bpf.MapPin+"*"))
	for _, pin := range pins {
		err = errors.Join(err, os.Remove(pin))
	}
	// Other instances may live in subdirectories of the default one's.
	if rmErr := os.Remove(bpfDir); rmErr != nil && !errors.Is(rmErr, os.ErrNotExist) {
		log.Debug("pin directory stays", "dir", bpfDir, "err", rmErr)
	}
	err = errors.Join(err, removeRoutes(), netdev.RemoveSegmentation(), netdev.RemoveSealer(),
		new(expedite).open(expeditedRCU, stateDir))
	undo, undoErr := netdev.OpenUndo(stateDir)
	if undoErr != nil {
		return errors.Join(err, undoErr)
	}
	undo.RestoreOffloads(log)
	return errors.Join(err, removeNeighbors(undo.Neighbors), undo.RestoreSysctls(), undo.Remove())
}

// removeNeighbors takes back the neighbour entries that the kernel was asked to keep fresh.
func removeNeighbors(addrs []netip.Addr) error {
	list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range list {
		addr, ok := netip.AddrFromSlice(n.IP)
		if !ok || n.FlagsExt&netlink.NTF_EXT_MANAGED == 0 || !slices.Contains(addrs, addr.Unmap()) {
			continue
		}
		if delErr := netlink.NeighDel(&n); delErr != nil {
			err = errors.Join(err, fmt.Errorf("remove neighbour %s: %w", addr, delErr))
		}
	}
	return err
}

// removeRoutes removes every route of ours from this network namespace.
func removeRoutes() error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL,
		&netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if delErr := netlink.RouteDel(&r); delErr != nil {
			err = errors.Join(err, fmt.Errorf("remove route %s: %w", r.Dst, delErr))
		}
	}
	return err
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
