package demo

import (
	"context"
	"fmt"
	"slices"

	"weft.dev/weft/internal/connectivity"
	"weft.dev/weft/internal/front/admin"
)

// failuresShown bounds how many failed tests the story lists.
const failuresShown = 8

// reach tests every pair and shows the matrix.
func (d *demo) reach(ctx context.Context) error {
	d.say("Every pod to every pod and to every node, over IPv4 and IPv6: ICMP, UDP and TCP, small packets, packets of exactly the path's MTU, packets one byte larger (which must be refused with the right size), and 100 kB there and back over TCP. The same as `weft connectivity test`.")
	targets, err := d.targets(ctx)
	if err != nil {
		return err
	}
	report, err := connectivity.Test(ctx, targets, connectivity.Options{})
	if err != nil {
		return err
	}
	d.showTable(matrix(report))
	d.failures(report)
	for _, family := range connectivity.Families {
		for _, protocol := range connectivity.Protocols {
			d.reachCheck(report, protocol, family)
		}
	}
	d.fact(fmt.Sprintf("%d of %d", report.Passed, report.Passed+report.Failed),
		"connectivity tests passed, IPv4 and IPv6, ICMP, UDP, TCP")
	return nil
}

// targets are the lab's nodes and pods, as their agents know them.
func (d *demo) targets(ctx context.Context) ([]connectivity.Target, error) {
	var targets []connectivity.Target
	for _, n := range d.lab.Nodes() {
		client := admin.NewClient(n.Socket)
		status, err := client.Status(ctx)
		if err != nil {
			return nil, fmt.Errorf("ask the agent of node %s: %w", n.Name, err)
		}
		endpoints, err := client.Endpoints(ctx)
		if err != nil {
			return nil, fmt.Errorf("ask the agent of node %s: %w", n.Name, err)
		}
		node := connectivity.Target{
			Name: "node/" + n.Name, Kind: connectivity.KindNode, Node: n.Name, NetNS: n.NetNS,
			MTU: status.UplinkMTU, WireMTU: status.UplinkMTU,
		}
		for _, addr := range status.Addresses {
			if addr.Is4() {
				node.IPv4 = addr
			} else {
				node.IPv6 = addr
			}
		}
		targets = append(targets, node)
		for _, e := range endpoints {
			targets = append(targets, connectivity.Target{
				Name: e.Name(), Kind: connectivity.KindPod, Node: n.Name, NetNS: e.NetNS,
				IPv4: e.IPv4, IPv6: e.IPv6, MTU: e.MTU, WireMTU: status.UplinkMTU,
			})
		}
	}
	return targets, nil
}

// matrix has a row per sender and a column per receiver, each cell the tests that passed.
func matrix(report *connectivity.Report) *table {
	var from, to []string
	passed, all := map[[2]string]int{}, map[[2]string]int{}
	for _, r := range report.Results {
		if !slices.Contains(from, r.From) {
			from = append(from, r.From)
		}
		if !slices.Contains(to, r.To) {
			to = append(to, r.To)
		}
		key := [2]string{r.From, r.To}
		all[key]++
		if r.OK {
			passed[key]++
		}
	}
	slices.Sort(from)
	slices.Sort(to)
	t := &table{Header: append([]string{"FROM \\ TO"}, to...), Left: 1}
	for _, f := range from {
		row := []string{f}
		for _, dst := range to {
			key := [2]string{f, dst}
			switch n := all[key]; {
			case n == 0:
				row = append(row, "·")
			case passed[key] == n:
				row = append(row, fmt.Sprintf("ok %d/%d", n, n))
			default:
				row = append(row, fmt.Sprintf("FAILED %d/%d", passed[key], n))
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// failures lists what did not get through.
func (d *demo) failures(report *connectivity.Report) {
	t := &table{Header: []string{"FROM", "TO", "TEST", "BYTES", "WHAT HAPPENED"}, Left: 5}
	for _, r := range report.Results {
		if !r.OK {
			t.Rows = append(t.Rows,
				[]string{r.From, r.To, r.Protocol + " " + r.Family + " " + r.Test,
					fmt.Sprint(r.Size), r.Detail})
		}
	}
	if len(t.Rows) == 0 {
		return
	}
	failed := len(t.Rows)
	t.Rows = t.Rows[:min(failed, failuresShown)]
	d.say("%d tests failed; the first %d of them:", failed, len(t.Rows))
	d.showTable(t)
}

// reachCheck is the outcome of one protocol over one family.
func (d *demo) reachCheck(report *connectivity.Report, protocol, family string) {
	passed, failed := 0, 0
	pairs := map[[2]string]bool{}
	var rtt []float64
	for _, r := range report.Results {
		if r.Protocol != protocol || r.Family != family {
			continue
		}
		pairs[[2]string{r.From, r.To}] = true
		if !r.OK {
			failed++
			continue
		}
		passed++
		// Only ICMP is answered by the kernel; elsewhere our own echo server waits for a CPU too.
		if r.Test == "small" && protocol == "icmp" {
			rtt = append(rtt, r.RTT)
		}
	}
	detail := fmt.Sprintf("%d pairs, %d of %d tests passed", len(pairs), passed, passed+failed)
	if len(rtt) > 0 {
		slices.Sort(rtt)
		detail += fmt.Sprintf(", median round trip %.0f µs", rtt[len(rtt)/2])
	}
	d.check("reach-"+protocol+"-"+family, failed == 0 && passed > 0, "%s", detail)
}
