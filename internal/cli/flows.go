package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
)

func newFlows(a *app) *cobra.Command {
	var query admin.FlowQuery
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "Show the flow log: connections that began, ended or were dropped",
		Long: `Show the flow log of this node: connections that began, ended or were dropped, with names.

An end (--from, --to) is a pod (namespace/pod or pod), a namespace (namespace/), a node's name,
an address or a CIDR; given several times, any of them. With -o json every record is one line.`,
		Example: "  weft flows -f --verdict dropped\n  weft flows --from demo/web --to 10.0.0.0/8 --protocol tcp\n  weft flows --last 20 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := query.Compile(); err != nil {
				return cmdutil.UsageError("--%w", err)
			}
			if !cmd.Flags().Changed("last") && query.Follow {
				query.Last = -1
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			return client.Flows(cmd.Context(), query, a.printFlow)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&query.Follow, "follow", "f", false, "go on with new records until interrupted")
	flags.StringArrayVar(&query.From, "from", nil, "only from this end")
	flags.StringArrayVar(&query.To, "to", nil, "only to this end")
	flags.StringVar(&query.Verdict, "verdict", "", "only forwarded or only dropped")
	flags.StringVar(&query.Reason, "reason", "",
		"only dropped for this reason (see `weft drops --all`)")
	flags.StringVar(&query.Protocol, "protocol", "",
		"only this protocol: tcp, udp, icmp, icmpv6 or a number")
	flags.IntVar(&query.Last, "last", 0,
		"begin with the last N records; 0 is all that the agent keeps (with -f: none unless given)")
	_ = cmd.RegisterFlagCompletionFunc("from", a.completePods)
	_ = cmd.RegisterFlagCompletionFunc("to", a.completePods)
	_ = cmd.RegisterFlagCompletionFunc("verdict", cmdutil.Fixed("forwarded", "dropped"))
	_ = cmd.RegisterFlagCompletionFunc("protocol", cmdutil.Fixed("tcp", "udp", "icmp", "icmpv6"))
	_ = cmd.RegisterFlagCompletionFunc("reason", a.completeReasons)
	cmd.AddCommand(newFlowTable(a))
	return cmd
}

// printFlow writes one record; a stream has no table to align.
func (a *app) printFlow(flow flows.Flow) error {
	if flow.Lost > 0 {
		fmt.Fprintf(a.ErrOut, "weft: %d records are missing here: this reader was too slow\n",
			flow.Lost)
	}
	switch output.Format(a.Format) {
	case output.JSON:
		return output.Line(a.Out, flow)
	case output.YAML:
		if _, err := fmt.Fprintln(a.Out, "---"); err != nil {
			return err
		}
		return a.Print(flow, nil)
	}
	line := flow.String()
	if a.Format == string(output.Wide) {
		line += fmt.Sprintf("  %s %s (%s, %s -> %s, %d bytes)", flow.NodeName, flow.Hook,
			flow.Direction, flow.Source.IP, flow.Destination.IP, flow.Length)
	}
	_, err := fmt.Fprintln(a.Out, line)
	return err
}

func newFlowTable(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "table",
		Short:   "Show the flow table: the connections that the datapath knows now",
		Example: "  weft flows table --limit 50 -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return cmdutil.UsageError("--limit: %d is not a number of rows: give 1 or more",
					limit)
			}
			fetch := func(client *admin.Client, ctx context.Context) ([]admin.TableFlow, error) {
				return client.FlowTable(ctx, limit)
			}
			return show(cmd.Context(), a, fetch, writeFlowTable, nil)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most this many rows")
	return cmd
}

func writeFlowTable(w io.Writer, rows []admin.TableFlow, wide bool) error {
	table := output.Rows{
		Header: []string{
			"PROTOCOL", "SOURCE", "DESTINATION", "STATE", "IDLE", "SENT", "RECEIVED", "AGE",
			"SENT BYTES", "RECEIVED BYTES", "VIA STACK",
		},
		WideFrom: 7, Empty: "the flow table is empty",
	}
	for _, row := range rows {
		table.Add(row.Protocol, row.Source.String(), row.Destination.String(), row.State, row.Idle,
			fmt.Sprint(row.Forward.Packets), fmt.Sprint(row.Reply.Packets), row.Age,
			fmt.Sprint(row.Forward.Bytes), fmt.Sprint(row.Reply.Bytes), fmt.Sprint(row.ViaStack))
	}
	return table.Write(w, wide)
}

func (a *app) completeReasons(cmd *cobra.Command, _ []string,
	_ string) ([]string, cobra.ShellCompDirective) {
	client, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	drops, err := client.Drops(cmd.Context(), true)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var reasons []string
	for _, drop := range sumDrops(drops) {
		reasons = append(reasons, drop.Reason)
	}
	return reasons, cobra.ShellCompDirectiveNoFileComp
}

func newDrops(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show what was dropped on this node, and why",
		Long: `Show what was dropped on this node since its datapath was loaded, and why. The wide table
tells endpoints and directions apart.`,
		Example: "  weft drops\n  weft drops --all -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fetch := func(client *admin.Client, ctx context.Context) ([]admin.Drop, error) { return client.Drops(ctx, all) }
			return show(cmd.Context(), a, fetch, writeDrops, nil)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also the reasons that never happened")
	return cmd
}

func writeDrops(w io.Writer, drops []admin.Drop, wide bool) error {
	const empty = "nothing was dropped"
	if !wide {
		rows := output.Rows{Header: []string{"REASON", "PACKETS", "BYTES", "MEANING"}, Empty: empty}
		for _, drop := range sumDrops(drops) {
			rows.Add(drop.Reason, fmt.Sprint(drop.Packets), fmt.Sprint(drop.Bytes), drop.Text)
		}
		return rows.Write(w, true)
	}
	rows := output.Rows{Header: []string{"REASON", "DIRECTION", "ENDPOINT", "PACKETS", "BYTES",
		"MEANING", "LOOK AT"}, Empty: empty}
	for _, drop := range drops {
		endpoint := drop.Endpoint
		if endpoint == "" {
			endpoint = "-"
		}
		rows.Add(drop.Reason, drop.Direction, endpoint, fmt.Sprint(drop.Packets),
			fmt.Sprint(drop.Bytes), drop.Text, drop.Hint)
	}
	return rows.Write(w, true)
}

// sumDrops makes one row per reason, in the order of first appearance.
func sumDrops(drops []admin.Drop) []admin.Drop {
	at := map[string]int{}
	var sums []admin.Drop
	for _, drop := range drops {
		i, ok := at[drop.Reason]
		if !ok {
			i = len(sums)
			at[drop.Reason] = i
			sums = append(sums, admin.Drop{Reason: drop.Reason, Text: drop.Text})
		}
		sums[i].Packets += drop.Packets
		sums[i].Bytes += drop.Bytes
	}
	return sums
}
