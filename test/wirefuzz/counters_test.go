package wirefuzz

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// counters are all that say that a packet was dropped: Weft's by reason, the kernel's by name.
type counters map[string]uint64

// since is how many drops were counted since then.
func (c counters) since(before counters) (sum int) {
	for name, n := range c {
		sum += int(n - before[name])
	}
	return sum
}

// The kernel's counters of what IP refuses: /proc/net/snmp, snmp6 and netstat.
var kernelDrops = map[string]bool{
	"Ip.InHdrErrors": true, "Ip.InAddrErrors": true, "Ip.InUnknownProtos": true,
	"Ip.InDiscards": true, "Ip.ReasmFails": true,
	"Icmp.InErrors": true, "Icmp.InCsumErrors": true, "Udp.InErrors": true,
	"IpExt.InNoRoutes": true, "IpExt.InTruncatedPkts": true, "IpExt.InCsumErrors": true,
	"TcpExt.IPReversePathFilter": true,
	"Ip6InHdrErrors":             true, "Ip6InAddrErrors": true, "Ip6InNoRoutes": true,
	"Ip6InTruncatedPkts": true, "Ip6InDiscards": true,
	"Ip6InUnknownProtos": true, "Ip6InTooBigErrors": true, "Ip6ReasmFails": true,
	"Icmp6InErrors": true,
}

func (b *harness) count(t *testing.T) counters {
	t.Helper()
	c := counters{}
	for _, n := range agents(b.lab) {
		drops, err := admin.NewClient(n.Socket).Drops(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range drops {
			c[n.Name+" "+d.Reason] += d.Packets
		}
		if err := kernelCounters(n, c); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func kernelCounters(n *lab.Node, c counters) error {
	return netns.Do(n.NetNS, func() error {
		add := func(name, value string) {
			if v, err := strconv.ParseUint(value, 10, 64); err == nil && kernelDrops[name] {
				c[n.Name+" "+name] += v
			}
		}
		for _, file := range []string{"snmp", "netstat"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			lines := strings.Split(string(text), "\n")
			for i := 0; i+1 < len(lines); i += 2 {
				names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
				for j := 1; j < len(names) && j < len(values); j++ {
					add(strings.TrimSuffix(names[0], ":")+"."+names[j], values[j])
				}
			}
		}
		text, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		for _, line := range strings.Split(string(text), "\n") {
			if f := strings.Fields(line); len(f) == 2 {
				add(f[0], f[1])
			}
		}
		if n.Name != "a" {
			return nil
		}
		// in_no_route, in_martian_dst and in_martian_src, which the kernel counts for all
		// namespaces together.
		text, err = os.ReadFile("/proc/thread-self/net/stat/rt_cache")
		if err != nil {
			return err
		}
		for _, line := range strings.Split(string(text), "\n")[1:] {
			if f := strings.Fields(line); len(f) > 8 {
				for _, field := range []string{f[4], f[6], f[7]} {
					v, err := strconv.ParseUint(field, 16, 64)
					if err != nil {
						return err
					}
					c[n.Name+" rt_cache"] += v
				}
			}
		}
		return nil
	})
}
