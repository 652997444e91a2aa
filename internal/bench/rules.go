package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"weft.dev/weft/internal/netns"
)

// serviceRules is how many rules of other workloads a packet passes in the baseline.
const serviceRules = 18

// iptablesRules is the baseline's rule set as iptables-restore reads it: 20 rules in
// the filter table and MASQUERADE in nat, with conntrack, which both imply. Like the
// rules of published ports and services, 18 match an address, the protocol and a port
// of somebody else; then come established connections, then new ones. A
// forwarded packet is held against 19 or all 20 of them. podIfs is the pattern
// of the pods' host-side interfaces and pods their range.
func iptablesRules(podIfs string, pods netip.Prefix) string {
	var b strings.Builder
	b.WriteString("*filter\n:INPUT ACCEPT\n:FORWARD DROP\n:OUTPUT ACCEPT\n")
	for i := range serviceRules {
		fmt.Fprintf(&b, "-A FORWARD -d 10.96.0.%d/32 -p tcp -m tcp --dport 80 -j DROP\n", i+1)
	}
	b.WriteString("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n")
	// The node forwards for its pods only: what is left are their new connections, and
	// UDP flows without an answer, which never become established.
	b.WriteString("-A FORWARD -m conntrack --ctstate NEW -j ACCEPT\nCOMMIT\n")
	b.WriteString("*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n")
	fmt.Fprintf(&b, "-A POSTROUTING -s %s ! -o %s -j MASQUERADE\nCOMMIT\n", pods, podIfs)
	return b.String()
}

// loadRules hands rules to iptables (Debian's, over nf_tables) inside a namespace.
func loadRules(ctx context.Context, ns, rules string) error {
	path, err := findTool("iptables-nft-restore", "iptables-restore")
	if err != nil {
		return fmt.Errorf("variant iptables: %w; install the package iptables", err)
	}
	if err := feed(ctx, ns, rules, path); err != nil {
		return fmt.Errorf("load iptables rules: %w", err)
	}
	return nil
}

// feed runs a program inside a namespace with an input. Its output is part of its error.
func feed(ctx context.Context, ns, input, path string, args ...string) error {
	return netns.Do(ns, func() error {
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Stdin = strings.NewReader(input)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String()))
		}
		return nil
	})
}

// findTool returns the path of the first command that exists, also where PATH lacks the sbin
// directories.
func findTool(names ...string) (string, error) {
	for _, name := range names {
		for _, candidate := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
			if path, err := exec.LookPath(candidate); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("none of %s found", strings.Join(names, ", "))
}
