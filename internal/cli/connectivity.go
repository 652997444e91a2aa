package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/connectivity"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab/labdir"
)

func newConnectivity(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "connectivity",
		Short:   "Test who reaches whom",
		Example: "  weft connectivity test",
	}
	cmd.AddCommand(newConnectivityTest(a))
	return cmd
}

func newConnectivityTest(a *app) *cobra.Command {
	var opt connectivity.Options
	var labName string
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Test every pair of pods and nodes on this machine",
		Long: `Test every ordered pair of pods, and every pod with every node, of all agents on this machine
that belong to one network (watch the same objects):
ICMP, UDP and TCP over both families, small packets, packets of exactly the path's MTU, and
packets one byte larger, which must be refused with the right size and not vanish. TCP sends
100 kB there and back and compares. It sends from inside the pods' network namespaces.

The exit code is 1 when any test failed. The wide table shows every single test.`,
		Example: "  weft connectivity test\n  weft connectivity test --from shop/client --protocol tcp -o wide\n  weft connectivity test -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			targets, err := a.targets(cmd.Context(), labName)
			if err != nil {
				return err
			}
			if opt.From, err = resolveTargets(targets, opt.From); err != nil {
				return cmdutil.UsageError("--from: %w", err)
			}
			if opt.To, err = resolveTargets(targets, opt.To); err != nil {
				return cmdutil.UsageError("--to: %w", err)
			}
			report, err := connectivity.Test(cmd.Context(), targets, opt)
			if err != nil {
				return err
			}
			if err := a.Print(report,
				func(w io.Writer,
					wide bool) error {
					return writeConnectivity(w, report, wide)
				}); err != nil {
				return err
			}
			if !report.OK {
				return &cmdutil.ExitError{Code: cmdutil.ExitFailed}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&labName, "lab", os.Getenv("WEFT_LAB"),
		"test this lab, where agents of several networks run (environment: WEFT_LAB)")
	flags.StringSliceVar(&opt.From, "from", nil, "only from these pods or nodes")
	flags.StringSliceVar(&opt.To, "to", nil, "only to these pods or nodes")
	flags.StringSliceVar(&opt.Protocols, "protocol", nil, "only these protocols: icmp, udp, tcp")
	flags.StringSliceVar(&opt.Families, "family", nil, "only these families: v4, v6")
	flags.DurationVar(&opt.Timeout, "timeout", time.Second,
		"how long one packet may take (a transfer: five times that)")
	flags.IntVar(&opt.Tries, "tries", 3, "how many attempts a packet has")
	flags.IntVar(&opt.Parallel, "parallel", 8, "how many pairs are tested at once")
	_ = cmd.RegisterFlagCompletionFunc("lab", cmdutil.CompleteLabs)
	_ = cmd.RegisterFlagCompletionFunc("protocol", cmdutil.Fixed(connectivity.Protocols...))
	_ = cmd.RegisterFlagCompletionFunc("family", cmdutil.Fixed(connectivity.Families...))
	return cmd
}

// targets are the nodes and endpoints of one network: of all agents on this machine that
// watch the same objects.
func (a *app) targets(ctx context.Context, labName string) ([]connectivity.Target, error) {
	statuses, clients, err := a.agents(ctx)
	if err != nil {
		return nil, err
	}
	network, err := a.network(ctx, statuses, labName)
	if err != nil {
		return nil, err
	}
	var targets []connectivity.Target
	for i, status := range statuses {
		if status.Store.Where() != network {
			continue
		}
		found, err := agentTargets(ctx, clients[i], status)
		if err != nil {
			return nil, err
		}
		targets = append(targets, found...)
	}
	return targets, nil
}

// agents asks all agents of this machine for their status.
func (a *app) agents(ctx context.Context) ([]*admin.Status, []*admin.Client, error) {
	var statuses []*admin.Status
	var clients []*admin.Client
	sockets := admin.Sockets(a.runDir)
	if len(sockets) == 0 || a.Socket != "" && !slices.Contains(sockets, a.Socket) {
		named, err := a.findSocket()
		if err != nil {
			return nil, nil, err
		}
		sockets = append(sockets, named)
	}
	for _, socket := range sockets {
		client := admin.NewClient(socket).Near(a.runDir)
		status, err := client.Status(ctx)
		if err != nil {
			return nil, nil, err
		}
		statuses, clients = append(statuses, status), append(clients, client)
	}
	return statuses, clients, nil
}

// network is the directory of objects whose nodes are meant: that of the lab or agent
// that is named, else the only one.
func (a *app) network(ctx context.Context, statuses []*admin.Status,
	labName string) (string, error) {
	if labName != "" {
		return labdir.Find(labName)
	}
	if a.Socket != "" || a.Instance != "" {
		client, err := a.client()
		if err != nil {
			return "", err
		}
		status, err := client.Status(ctx)
		if err != nil {
			return "", err
		}
		return status.Store.Where(), nil
	}
	instances := map[string]string{}
	for _, status := range statuses {
		if _, known := instances[status.Store.Where()]; !known {
			instances[status.Store.Where()] = status.Instance
		}
	}
	if len(instances) > 1 {
		return "", cmdutil.UsageError("agents of %d networks run here: name one with --lab, or one of its agents with --instance %s", len(instances), strings.Join(slices.Sorted(maps.Values(instances)), " | "))
	}
	return statuses[0].Store.Where(), nil
}

func agentTargets(ctx context.Context, client *admin.Client,
	status *admin.Status) ([]connectivity.Target, error) {
	endpoints, err := client.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	node := connectivity.Target{
		Name: "node/" + status.Node, Kind: connectivity.KindNode, Node: status.Node,
		NetNS: status.Paths.NetNS, MTU: status.UplinkMTU, WireMTU: status.UplinkMTU,
	}
	for _, addr := range status.Addresses {
		if addr.Is4() {
			node.IPv4 = addr
		} else {
			node.IPv6 = addr
		}
	}
	targets := []connectivity.Target{node}
	for _, e := range endpoints {
		if e.Network != 0 {
			continue // nobody outside of it reaches it
		}
		targets = append(targets, connectivity.Target{
			Name: e.Name(), Kind: connectivity.KindPod, Node: status.Node, NetNS: e.NetNS,
			IPv4: e.IPv4, IPv6: e.IPv6, MTU: e.MTU, WireMTU: status.UplinkMTU,
		})
	}
	return targets, nil
}

// resolveTargets turns names as people write them (a pod or node alone) into targets' names.
func resolveTargets(targets []connectivity.Target, names []string) ([]string, error) {
	var resolved []string
	for _, name := range names {
		before := len(resolved)
		for _, target := range targets {
			if target.Name == name || target.Name == "node/"+name || hasPodName(target.Name, name) {
				resolved = append(resolved, target.Name)
			}
		}
		if len(resolved) == before {
			return nil, fmt.Errorf("no pod or node %q runs here", name)
		}
	}
	return resolved, nil
}

func hasPodName(target, pod string) bool {
	return len(target) > len(pod) && target[len(target)-len(pod)-1:] == "/"+pod
}

func writeConnectivity(w io.Writer, report *connectivity.Report, wide bool) error {
	write := writePairs
	if wide {
		write = writeTests
	}
	if err := write(w, report); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d tests passed, %d failed, in %.1f s\n", report.Passed,
		report.Failed, report.Seconds)
	return err
}

// writeTests shows every test.
func writeTests(w io.Writer, report *connectivity.Report) error {
	rows := output.Rows{Header: []string{"FROM", "TO", "FAMILY", "PROTOCOL", "TEST", "SIZE",
		"RESULT", "RTT µs", "DETAIL"}}
	for _, r := range report.Results {
		rows.Add(r.From, r.To, r.Family, r.Protocol, r.Test, fmt.Sprint(r.Size), verdict(r.OK),
			rtt(r.RTT), r.Detail)
	}
	return rows.Write(w, true)
}

// writePairs shows one line per pair, and below it what failed.
func writePairs(w io.Writer, report *connectivity.Report) error {
	rows := output.Rows{Header: []string{"FROM", "TO"}}
	var columns []string
	for _, family := range connectivity.Families {
		for _, protocol := range connectivity.Protocols {
			columns = append(columns, protocol+" "+family)
		}
	}
	rows.Header = append(rows.Header, columns...)
	rows.Header = append(rows.Header, "RTT µs")
	var failures []string
	for start := 0; start < len(report.Results); {
		end := start
		for end < len(report.Results) && report.Results[end].From == report.Results[start].From &&
			report.Results[end].To == report.Results[start].To {
			end++
		}
		rows.Lines = append(rows.Lines, pairLine(report.Results[start:end], columns))
		for _, r := range report.Results[start:end] {
			if !r.OK {
				failures = append(failures,
					fmt.Sprintf("FAILED %s -> %s %s %s, %s, %d bytes: %s", r.From, r.To, r.Protocol,
						r.Family, r.Test, r.Size, r.Detail))
			}
		}
		start = end
	}
	if err := rows.Write(w, true); err != nil {
		return err
	}
	if len(failures) > 0 {
		fmt.Fprintln(w)
	}
	for _, failure := range failures {
		fmt.Fprintln(w, failure)
	}
	return nil
}

// pairLine is "ok" or what failed for every column, and the fastest small echo.
func pairLine(results []connectivity.Result, columns []string) []string {
	line := []string{results[0].From, results[0].To}
	best := 0.0
	cells := make([]string, len(columns))
	for _, r := range results {
		if r.Test == "small" && r.OK && (best == 0 || r.RTT < best) {
			best = r.RTT
		}
		at := slices.Index(columns, r.Protocol+" "+r.Family)
		switch {
		case !r.OK && cells[at] != "" && cells[at] != "ok":
			cells[at] += "," + r.Test
		case !r.OK:
			cells[at] = "FAIL " + r.Test
		case cells[at] == "":
			cells[at] = "ok"
		}
	}
	for i, cell := range cells {
		if cell == "" {
			cells[i] = "-"
		}
	}
	return append(append(line, cells...), rtt(best))
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAILED"
}

func rtt(micros float64) string {
	if micros == 0 {
		return "-"
	}
	return strconv.FormatFloat(micros, 'f', 0, 64)
}
