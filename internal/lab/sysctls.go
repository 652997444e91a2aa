package lab

import (
	"fmt"
	"os"
	"path/filepath"
)

// Settings of every IPv4 interface, present and to come. A distribution's are those of systemd's
// 50-default.conf, with conf.all's reverse path filter as Ubuntu has it besides: the larger of
// all's and an interface's own counts. What systemd sets that a network namespace does not have is
// left out.
var interfaceSysctls = map[string]map[string]string{
	SysctlsDistribution: {"rp_filter": "2", "accept_source_route": "0", "promote_secondaries": "1"},
	SysctlsKernel:       {"rp_filter": "0", "accept_source_route": "1", "promote_secondaries": "0"},
}

var otherSysctls = map[string]map[string]string{
	SysctlsDistribution: {"net/ipv4/ping_group_range": "0 2147483647"},
	SysctlsKernel: {"net/ipv4/ping_group_range": "1 0",
		"net/ipv4/conf/all/accept_source_route": "0"},
}

// SetSysctls gives the current network namespace the settings that Spec.Sysctls names, empty for
// the default: a new one has those of the machine, whatever they are.
func SetSysctls(kind string) error {
	if kind == "" {
		kind = SysctlsDistribution
	}
	interfaces, err := os.ReadDir("/proc/sys/net/ipv4/conf")
	if err != nil {
		return fmt.Errorf("list interfaces' sysctls: %w", err)
	}
	values := map[string]string{}
	for _, i := range interfaces {
		for name, value := range interfaceSysctls[kind] {
			values[filepath.Join("net/ipv4/conf", i.Name(), name)] = value
		}
	}
	for name, value := range otherSysctls[kind] {
		values[name] = value
	}
	return setSysctls(values)
}
