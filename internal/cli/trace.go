package cli

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/policy"
)

func newTrace(a *app) *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Show what the datapath would do with a packet, step by step",
		Long: `Run the live programs on a crafted packet and show each decision: parsing, anti-spoofing,
flow, route, verdict. The packet goes nowhere.

The exit code is 0 when the packet would be forwarded and 4 when it would be dropped.`,
		Example: "  weft trace --from demo/web --to 10.10.2.2:80/tcp\n  weft trace --from demo/web --to '[fd10::2]:53/udp'\n  weft trace --from demo/web --to 10.10.2.2/icmp",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, protocol, err := parseTarget(to)
			if err != nil {
				return cmdutil.UsageError("--to: %w", err)
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			result, err := client.Trace(cmd.Context(),
				admin.TraceRequest{From: from, To: addr.String(), Protocol: protocol})
			if err != nil {
				return err
			}
			if err := a.Print(result,
				func(w io.Writer, _ bool) error { return writeTrace(w, result) }); err != nil {
				return err
			}
			if result.Dropped() {
				return &cmdutil.ExitError{Code: exitDropped}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "from", "",
		"the pod that sends: namespace/pod, pod or endpoint ID")
	cmd.Flags().StringVar(&to, "to", "",
		"where to: ADDRESS:PORT/PROTOCOL or ADDRESS/icmp, an IPv6 address with a port in brackets")
	_ = cmd.MarkFlagRequired("from")
	_ = cmd.MarkFlagRequired("to")
	_ = cmd.RegisterFlagCompletionFunc("from", a.completePods)
	return cmd
}

// parseTarget reads ADDRESS:PORT/PROTOCOL. Protocols without ports go without one.
func parseTarget(target string) (netip.AddrPort, string, error) {
	const form = "use ADDRESS:PORT/PROTOCOL such as 10.10.2.2:80/tcp, [fd10::2]:53/udp or 10.10.2.2/icmp"
	var none netip.AddrPort
	address, protocol, ok := strings.Cut(target, "/")
	if !ok {
		return none, "", fmt.Errorf("%q names no protocol: %s", target, form)
	}
	number, err := flows.ParseProtocol(protocol)
	if err != nil {
		return none, "", err
	}
	if addrPort, err := netip.ParseAddrPort(address); err == nil {
		return addrPort, icmpFor(number, addrPort.Addr()), nil
	}
	addr, err := netip.ParseAddr(strings.Trim(address, "[]"))
	if err != nil {
		return none, "", fmt.Errorf("%q is no address: %s", address, form)
	}
	if policy.HasPorts(number) {
		return none, "", fmt.Errorf("%q names no port: %s", target, form)
	}
	return netip.AddrPortFrom(addr, 0), icmpFor(number, addr), nil
}

// icmpFor reads "icmp" to an IPv6 address as ICMPv6: that is what was meant.
func icmpFor(number uint8, addr netip.Addr) string {
	if number == 1 && addr.Is6() && !addr.Is4In6() {
		return "icmpv6"
	}
	if number == 58 && addr.Is4() {
		return "icmp"
	}
	return strconv.Itoa(int(number))
}

func writeTrace(w io.Writer, r *admin.TraceResult) error {
	to := r.To
	if r.ToName != "" {
		to += " (" + r.ToName + ")"
	}
	fmt.Fprintf(w, "%s -> %s %s\n\n", r.From, to, r.Protocol)
	rows := output.Rows{Header: []string{"HOOK", "STEP", "DECISION"},
		Empty: "the programs reported no steps"}
	for _, step := range r.Steps {
		rows.Add(step.Hook, step.Step, step.Detail)
	}
	if err := rows.Write(w, true); err != nil {
		return err
	}
	verdict := "verdict: " + r.Verdict
	if r.Reason != "" {
		verdict += " (" + r.Reason + ")"
		if r.ReasonText != "" {
			verdict += ": " + r.ReasonText
		}
	}
	if r.OutIf != "" {
		verdict += ", out of " + r.OutIf
	}
	if r.NextHop != "" {
		verdict += ", to " + r.NextHop
	}
	if r.Hint != "" {
		verdict += "\nhint: " + r.Hint
	}
	_, err := fmt.Fprintf(w, "\n%s\n", verdict)
	return err
}
