package netdev

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
)

// genModeNone keeps the kernel from giving an interface a link-local address.
const genModeNone = 1

// ConfigureHost makes the host side of a pod's interface a router's port without addresses. It does
// not set it up.
func ConfigureHost(h *netlink.Handle, name, alias string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := h.LinkSetAlias(link, alias); err != nil {
		return fmt.Errorf("set alias of %s: %w", name, err)
	}
	settings := [][2]string{{"ipv4/conf/%s/rp_filter", "0"}, {"ipv4/conf/%s/forwarding", "1"},
		{"ipv4/conf/%s/proxy_arp", "0"}}
	if HasIPv6() {
		if err := h.LinkSetIP6AddrGenMode(link, genModeNone); err != nil {
			return fmt.Errorf("turn off link-local addresses of %s: %w", name, err)
		}
		settings = append(settings, [2]string{"ipv6/conf/%s/disable_ipv6", "0"},
			[2]string{"ipv6/conf/%s/forwarding", "1"},
			[2]string{"ipv6/conf/%s/accept_ra", "0"}, [2]string{"ipv6/conf/%s/proxy_ndp", "0"})
	}
	return set(name, settings)
}

// AllowIPv6 has the pod's end of an interface take the IPv6 addresses that it is given, and no
// others. It works on the thread's network namespace.
func AllowIPv6(name string) error {
	return set(name,
		[][2]string{{"ipv6/conf/%s/disable_ipv6", "0"}, {"ipv6/conf/%s/accept_ra", "0"}})
}

// set writes settings of an interface in the thread's network namespace, each a path below
// /proc/sys/net with %s for the name. Paths are used, not dotted names, because an interface name
// may hold dots.
func set(name string, settings [][2]string) error {
	for _, s := range settings {
		path := "/proc/sys/net/" + fmt.Sprintf(s[0], name)
		if err := os.WriteFile(path, []byte(s[1]), 0); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	return nil
}

// HasIPv6 tells whether the node's kernel does IPv6 at all.
func HasIPv6() bool {
	data, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err == nil && strings.TrimSpace(string(data)) == "0"
}

// quiet keeps the kernel from giving an interface addresses or checking the way back of what
// arrives on it: that way is another interface.
func quiet(name string) error {
	for file, value := range map[string]string{
		"ipv4/conf/" + name + "/rp_filter":     "0",
		"ipv4/conf/" + name + "/forwarding":    "1",
		"ipv6/conf/" + name + "/addr_gen_mode": "1",
		"ipv6/conf/" + name + "/forwarding":    "1",
		"ipv6/conf/" + name + "/accept_ra":     "0",
	} {
		if err := WriteSysctl(file, value); err != nil {
			return err
		}
	}
	return nil
}

// silence keeps an interface from speaking by itself: no link-local address, no MLD.
func silence(name string) error { return WriteSysctl("ipv6/conf/"+name+"/disable_ipv6", "1") }

// WriteSysctl sets a value below /proc/sys/net, if there is such a setting: IPv6 may be missing.
func WriteSysctl(name, value string) error {
	err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("set sysctl net/%s: %w", name, err)
	}
	return nil
}
