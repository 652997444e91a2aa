package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/front/admin"
)

func newEndpoint(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "endpoint",
		Aliases: []string{"endpoints", "ep"},
		Short:   "Show the node's endpoints: pods' interfaces",
		Example: "  weft endpoint list\n  weft endpoint get demo/web",
	}
	cmd.AddCommand(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the node's endpoints",
		Example: "  weft endpoint list -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			endpoints, err := a.endpoints(cmd.Context())
			if err != nil {
				return err
			}
			return a.Print(endpoints,
				func(w io.Writer, wide bool) error { return writeEndpoints(w, endpoints, wide) })
		},
	}, &cobra.Command{
		Use:               "get POD",
		Short:             "Show one endpoint and what passed it",
		Long:              "Show one endpoint, named by namespace/pod, by the pod alone where that is clear, by its ID, container or address.",
		Example:           "  weft endpoint get demo/web\n  weft endpoint get 10.10.1.2 -o yaml",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			endpoints, err := a.endpoints(cmd.Context())
			if err != nil {
				return err
			}
			found, err := findEndpoint(endpoints, args[0])
			if err != nil {
				return err
			}
			return a.Print(found,
				func(w io.Writer, _ bool) error { return writeEndpoint(w, found) })
		},
	})
	return cmd
}

func (a *app) endpoints(ctx context.Context) ([]admin.Endpoint, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	return client.Endpoints(ctx)
}

// findEndpoint finds the one endpoint that a name means.
func findEndpoint(endpoints []admin.Endpoint, name string) (*admin.Endpoint, error) {
	var found []*admin.Endpoint
	for i := range endpoints {
		e := &endpoints[i]
		addr, _ := netip.ParseAddr(name)
		if e.Name() == name || e.Pod == name || e.ID == name || e.ContainerID == name ||
			e.HostIf == name ||
			(addr.IsValid() &&
				(e.IPv4 == addr || e.IPv6 == addr || slices.Contains(e.More, addr))) {
			found = append(found, e)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("this node has no endpoint %q: `weft endpoint list` shows them",
			name)
	}
	var names []string
	for _, e := range found {
		names = append(names, fmt.Sprintf("%s (id %s)", e.Name(), e.ID))
	}
	return nil, fmt.Errorf("%q is %d endpoints: name one of %s", name, len(found),
		strings.Join(names, ", "))
}

// text is an address, or "-" for none.
func text(addr netip.Addr) string {
	if !addr.IsValid() {
		return "-"
	}
	return addr.String()
}

func writeEndpoints(w io.Writer, endpoints []admin.Endpoint, wide bool) error {
	rows := output.Rows{
		Header: []string{"POD", "IPV4", "IPV6", "STATE", "PACKETS OUT", "PACKETS IN", "DROPPED",
			"DATAPATH", "ID", "SLOT", "INTERFACE", "MAC", "MTU", "SERVICE ACCOUNT", "IDENTITY",
			"FLOWS", "OVER BUDGET", "LABELS"},
		WideFrom: 8, Empty: "this node has no endpoints",
	}
	for _, e := range endpoints {
		var out, in, dropped uint64
		for _, row := range e.Traffic {
			switch {
			case row.Reason != "":
				dropped += row.Packets
			case row.Direction == "egress":
				out += row.Packets
			default:
				in += row.Packets
			}
		}
		rows.Add(e.Name(), text(e.IPv4), text(e.IPv6), e.State, fmt.Sprint(out), fmt.Sprint(in),
			fmt.Sprint(dropped),
			e.PodDatapath.Name, e.ID, fmt.Sprint(e.Slot), e.HostIf, e.MAC, fmt.Sprint(e.MTU),
			e.ServiceAccount, number(int(e.Identity)), fmt.Sprint(flowsHeld(e)),
			cmp.Or(overBudget(e), "-"), output.Labels(e.Labels))
	}
	return rows.Write(w, wide)
}

func further(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return cmp.Or(strings.Join(out, ", "), "-")
}

// flowsHeld is how many entries of the flow table an endpoint holds.
func flowsHeld(e admin.Endpoint) (flows uint32) {
	for _, b := range e.Budgets {
		flows += b.Flows
	}
	return flows
}

// overBudget says what an endpoint lost to its share of the tables, "" if nothing.
func overBudget(e admin.Endpoint) string {
	var parts []string
	for _, b := range e.Budgets {
		if lost := b.Lost(); lost != "" {
			parts = append(parts, b.Direction+": "+lost)
		}
	}
	return strings.Join(parts, "; ")
}

func writeEndpoint(w io.Writer, e *admin.Endpoint) error {
	rows := output.Rows{Header: []string{"Pod:", e.Name()}}
	for _, line := range [][2]string{
		{"ID", e.ID}, {"State", e.State}, {"IPv4", text(e.IPv4)}, {"IPv6", text(e.IPv6)},
		{"Further addresses", further(e.More)}, {"Network", fmt.Sprint(e.Network)}, {"MAC", e.MAC},
		{"MTU", fmt.Sprint(e.MTU)}, {"Service account", e.ServiceAccount},
		{"Labels", output.Labels(e.Labels)},
		{"Datapath", e.PodDatapath.Name + ": " + e.PodDatapath.Why}, {"Host interface", e.HostIf},
		{"Pod interface", e.PodIf + " in " + e.NetNS}, {"Slot", fmt.Sprint(e.Slot)},
		{"Container", e.ContainerID}, {"Chained", fmt.Sprint(e.Chained)},
		{"Created", e.Created.Format("2006-01-02 15:04:05 MST")},
	} {
		rows.Add(line[0]+":", line[1])
	}
	if err := rows.Write(w, true); err != nil {
		return err
	}
	fmt.Fprintln(w)
	traffic := output.Rows{Header: []string{"DIRECTION", "VERDICT", "REASON", "PACKETS", "BYTES"},
		Empty: "nothing has passed it yet"}
	for _, row := range e.Traffic {
		traffic.Add(row.Direction, row.Verdict, row.Reason, fmt.Sprint(row.Packets),
			fmt.Sprint(row.Bytes))
	}
	if err := traffic.Write(w, true); err != nil || len(e.Budgets) == 0 {
		return err
	}
	fmt.Fprintln(w)
	budgets := output.Rows{Header: []string{"BUDGET", "FLOWS", "FLOWS EVICTED", "FLOWS REFUSED",
		"FRAGMENTS EVICTED", "EVENTS SUPPRESSED", "ICMP ERRORS SUPPRESSED"}}
	for _, b := range e.Budgets {
		budgets.Add(b.Direction, fmt.Sprint(b.Flows), fmt.Sprint(b.FlowsEvicted),
			fmt.Sprint(b.FlowsRefused), fmt.Sprint(b.FragmentsEvicted),
			fmt.Sprint(b.EventsSuppressed), fmt.Sprint(b.ErrorsSuppressed))
	}
	return budgets.Write(w, true)
}

func newNode(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Aliases: []string{"nodes"},
		Short:   "Show the nodes that the agent knows, and forget those that are gone for good",
		Example: "  weft node list\n  weft node forget node-7"}
	cmd.AddCommand(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the nodes that the agent knows",
		Example: "  weft node list\n  weft node list -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, (*admin.Client).Nodes, writeNodes, nil)
		},
	}, newForget(a))
	return cmd
}

func writeNodes(w io.Writer, nodes []admin.Node, wide bool) error {
	rows := output.Rows{Header: []string{"NODE", "ADDRESSES", "POD RANGES", "ENDPOINTS"},
		Empty: "the store declares no nodes"}
	for _, node := range nodes {
		name := node.Name
		if node.Self {
			name += " (this one)"
		}
		rows.Add(name, output.Join(node.Addresses), output.Join(node.PodCIDRs),
			fmt.Sprint(node.Endpoints))
	}
	return rows.Write(w, wide)
}

func newForget(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "forget NODE|RANGE",
		Short: "Forget a node that is gone for good, or one of its ranges",
		Long: `Forget a node that is gone for good, or one range or address that "weft status" lists as no_node.

With encryption, what was a node's stays the cluster's when its Node object is missing: nothing goes
there and nothing is taken from there, so that nothing leaves in cleartext because of a lost file. What
is forgotten is the world outside from then on. Each agent remembers for itself: run this on every
node. A node whose object is still in use cannot be forgotten: remove the object first, and the files
of its endpoints, which name its pods' addresses for as long as they are there.`,
		Example: "  weft node forget node-7\n  weft node forget 10.77.2.0/24",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			forget := func(client *admin.Client, ctx context.Context) ([]admin.NoNode, error) {
				return client.ForgetNode(ctx, args[0])
			}
			return show(cmd.Context(), a, forget, writeForgotten, nil)
		},
	}
}

func writeForgotten(w io.Writer, gone []admin.NoNode, wide bool) error {
	rows := output.Rows{Header: []string{"FORGOTTEN", "NODE", "LOST SINCE"}}
	for _, e := range gone {
		rows.Add(e.Prefix.String(), cmp.Or(e.Node, "-"), e.Since.Local().Format(time.DateTime))
	}
	return rows.Write(w, wide)
}
