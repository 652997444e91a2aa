package startup

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/config"
)

// Links is what the agent must know of the host's interfaces.
type Links struct {
	Uplinks []string
	// MTU is the smallest of the uplinks'.
	MTU int
	// Addrs are all addresses of the host that a packet may be meant for.
	Addrs []netip.Addr
}

// FindLinks resolves the uplinks: those of the configuration, else the interfaces
// that hold the node's addresses.
func FindLinks(cfg *config.Config, nodeAddrs []netip.Addr) (Links, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return Links{}, fmt.Errorf("list interfaces: %w", err)
	}
	byAddr, err := hostAddrs(links)
	if err != nil {
		return Links{}, err
	}
	found := Links{}
	for addr := range byAddr {
		found.Addrs = append(found.Addrs, addr)
	}
	slices.SortFunc(found.Addrs, netip.Addr.Compare)
	if found.Uplinks, err = chooseUplinks(cfg.Uplinks, nodeAddrs, byAddr); err != nil {
		return Links{}, err
	}
	for _, name := range found.Uplinks {
		at := slices.IndexFunc(links,
			func(link netlink.Link) bool { return link.Attrs().Name == name })
		if at < 0 {
			return Links{}, fmt.Errorf("uplinks: there is no interface %q", name)
		}
		if mtu := links[at].Attrs().MTU; found.MTU == 0 || mtu < found.MTU {
			found.MTU = mtu
		}
	}
	return found, nil
}

// chooseUplinks names the uplinks, each once.
func chooseUplinks(configured []string, nodeAddrs []netip.Addr,
	byAddr map[netip.Addr]string) ([]string, error) {
	if len(configured) > 0 {
		return configured, nil
	}
	var names []string
	for _, addr := range nodeAddrs {
		name, ok := byAddr[addr]
		if !ok {
			return nil, fmt.Errorf("no interface holds the node's address %s: assign it, correct the Node object, or name the uplinks in the configuration", addr)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the Node object has no addresses and the configuration no uplinks: give it one of them")
	}
	return names, nil
}

// hostAddrs maps every address of the host, loopback and link-local ones left out, to its
// interface.
func hostAddrs(links []netlink.Link) (map[netip.Addr]string, error) {
	names := map[int]string{}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	byAddr := map[netip.Addr]string{}
	for _, addr := range addrs {
		ip, ok := netip.AddrFromSlice(addr.IP)
		if ip = ip.Unmap(); ok && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			byAddr[ip] = names[addr.LinkIndex]
		}
	}
	return byAddr, nil
}
