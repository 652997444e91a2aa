package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// kernelLosses counts packets that the kernel itself has thrown away in a lab's namespaces: by
// interface, by full socket buffers, by full backlogs. It tells a busy machine from a broken
// datapath.
func kernelLosses(t *testing.T, l *lab.Lab) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	namespaces, _ := filepath.Glob(netns.Path("weft-" + l.Name() + "-*"))
	for _, ns := range namespaces {
		short := strings.TrimPrefix(filepath.Base(ns), "weft-"+l.Name()+"-")
		_ = netns.Do(ns, func() error {
			links, err := netlink.LinkList()
			for _, link := range links {
				if s := link.Attrs().Statistics; s != nil {
					out[short+" "+link.Attrs().Name+" rx dropped"] = s.RxDropped
					out[short+" "+link.Attrs().Name+" tx dropped"] = s.TxDropped
				}
			}
			for _, key := range []string{"Udp6RcvbufErrors", "Udp6InErrors", "Ip6InDiscards",
				"Ip6OutDiscards", "Ip6InNoRoutes", "Ip6OutNoRoutes"} {
				out[short+" "+key] = snmp6(key)
			}
			// Where no agent runs nobody listens: other nodes' path probes are no losses.
			bare := slices.ContainsFunc(l.Nodes(),
				func(n *lab.Node) bool { return n.Bare && n.NetNS == ns })
			for key, value := range snmp4() {
				if !bare || key != "Udp:NoPorts" {
					out[short+" "+key] = value
				}
			}
			return err
		})
	}
	text, _ := os.ReadFile("/proc/net/softnet_stat")
	for cpu, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var processed, dropped uint64
		fmt.Sscanf(line, "%x %x", &processed, &dropped)
		out[fmt.Sprintf("backlog of CPU %d", cpu)] = dropped
	}
	return out
}

func snmp6(key string) (value uint64) {
	text, _ := os.ReadFile("/proc/thread-self/net/snmp6")
	for _, line := range strings.Split(string(text), "\n") {
		if name, number, ok := strings.Cut(line, " "); ok && strings.TrimSpace(name) == key {
			fmt.Sscan(number, &value)
		}
	}
	return value
}

// snmp4 reads the IPv4 counters that tell of lost packets.
func snmp4() map[string]uint64 {
	out := map[string]uint64{}
	text, _ := os.ReadFile("/proc/thread-self/net/snmp")
	lines := strings.Split(string(text), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for j := 1; j < len(names) && j < len(values); j++ {
			switch key := names[0] + names[j]; key {
			case "Udp:RcvbufErrors", "Udp:InErrors", "Udp:NoPorts", "Ip:InDiscards",
				"Ip:OutDiscards", "Ip:OutNoRoutes", "Ip:InAddrErrors":
				var value uint64
				fmt.Sscan(values[j], &value)
				out[key] = value
			}
		}
	}
	return out
}

// tellLosses logs what has grown since before.
func tellLosses(t *testing.T, l *lab.Lab, before map[string]uint64) {
	t.Helper()
	for key, now := range kernelLosses(t, l) {
		if now != before[key] {
			t.Logf("the kernel lost packets: %s grew by %d", key, now-before[key])
		}
	}
	for _, n := range agents(l) {
		t.Logf("drops at %s: %s", n.Name, dropText(t, n))
	}
}
