package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/version"
)

// backend answers the admin API.
type backend struct{ *Agent }

func (a *Agent) sinceStart() time.Duration { return time.Since(a.started).Round(time.Millisecond) }

// up is the running node, or the refusal to give while there is none.
func (b *backend) up() (*node, error) {
	if running := b.running(); running != nil {
		return running, nil
	}
	return nil, &admin.StatusError{Code: http.StatusServiceUnavailable,
		Msg: "the agent is not ready: it waits for " + b.readiness().Waiting}
}

// Ready implements admin.Backend.
func (b *backend) Ready() admin.Readiness { return b.readiness() }

// Status implements admin.Backend.
func (b *backend) Status(ctx context.Context) (*admin.Status, error) {
	ix, ready, stats := b.index.Load(), b.readiness(), b.hub.Stats()
	status := &admin.Status{
		Node: b.cfg.Node, Instance: b.cfg.Instance, Version: b.opt.Version,
		Kernel: version.Kernel(),
		PID:    os.Getpid(), Started: b.started, Ready: ready.Ready, Waiting: ready.Waiting,
		Problems: b.problemList(),
		Nodes:    len(ix.snapshot.Nodes),
		Mode:     datapath.ModeStatus{Asked: datapath.Mode(b.cfg.Mode)},
		Store:    admin.StoreStatus{Store: b.cfg.Store, Errors: ix.snapshot.Errors},
		Paths: admin.Paths{Socket: b.cfg.Socket(), State: b.cfg.StateDir(), BPF: b.cfg.BPFDir(),
			NetNS: fmt.Sprintf("/proc/%d/ns/net", os.Getpid())},
		Events: admin.EventStatus{
			Followers: stats.Followers, FollowersLost: stats.Lost, LogFile: b.cfg.Flows.Log,
		},
	}
	for _, count := range stats.Seen {
		status.Events.Seen += count
	}
	running := b.running()
	if running == nil {
		return status, nil
	}
	status.Mode = running.dp.ModeStatus()
	status.Encryption = b.encryptionLine(running)
	status.Problems = append(status.Problems, b.keyProblems(ctx)...)
	status.Problems = append(status.Problems, b.peerProblems(running, ready.Ready)...)
	status.Problems = append(status.Problems, b.rangeProblems(running)...)
	status.NoNode = ix.noNode()
	status.Addresses, status.PodCIDRs = running.object.Spec.Addresses, running.object.Spec.PodCIDRs
	status.Uplinks, status.MTU = running.links.Uplinks, running.mtu
	status.UplinkMTU = running.links.MTU
	b.addPodDatapaths(status, running)
	var errLinks, errEvents, errBudgets error
	status.Problems = append(status.Problems, running.dp.Problems()...)
	status.Problems = append(status.Problems, running.manager.Problems()...)
	status.Notes = b.notes(running)
	status.Links, errLinks = running.dp.Links()
	status.Events.EventStats, errEvents = running.dp.EventStats()
	status.OverBudget, errBudgets = overBudget(running)
	for _, err := range []error{errLinks, errEvents, errBudgets, running.manager.Status()} {
		if err != nil {
			status.Problems = append(status.Problems, err.Error())
		}
	}
	return status, nil
}

// Endpoints implements admin.Backend.
func (b *backend) Endpoints(context.Context) ([]admin.Endpoint, error) {
	running, err := b.up()
	if err != nil {
		return nil, err
	}
	counters, err := running.dp.Counters()
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	traffic := map[uint16][]admin.CounterRow{}
	for _, row := range counters {
		if row.Packets > 0 {
			traffic[row.Slot] = append(traffic[row.Slot], admin.CounterRow{
				Direction: row.Direction, Verdict: row.Verdict, Reason: row.Reason,
				Traffic: row.Traffic,
			})
		}
	}
	budgets, err := running.dp.Budgets()
	if err != nil {
		return nil, fmt.Errorf("read budgets: %w", err)
	}
	bySlot := budgetsBySlot(budgets)
	var out []admin.Endpoint
	for _, info := range running.manager.List() {
		row := describe(info, traffic[info.Slot])
		row.Budgets = bySlot[info.Slot]
		row.PodDatapath = podDatapathOf(running, info)
		out = append(out, row)
	}
	return out, nil
}

func describe(info endpoint.Info, traffic []admin.CounterRow) admin.Endpoint {
	return admin.Endpoint{
		ID: info.ID, Namespace: info.Namespace, Pod: info.Pod, Labels: info.Labels,
		ServiceAccount: info.ServiceAccount, Identity: info.Identity,
		ContainerID: info.ContainerID, IfName: info.IfName, Slot: info.Slot, HostIf: info.HostIf,
		NetNS: info.NetNS,
		PodIf: info.PodIf, MAC: info.MAC, GatewayMAC: info.GatewayMAC, IPv4: info.IPv4,
		IPv6: info.IPv6, More: info.More, Network: info.NetworkID, MTU: info.MTU,
		Chained: info.Chained, State: string(info.State), Created: info.Created, Traffic: traffic,
	}
}

// Nodes implements admin.Backend.
func (b *backend) Nodes(context.Context) ([]admin.Node, error) {
	ix := b.index.Load()
	var out []admin.Node
	for name, object := range ix.snapshot.Nodes {
		out = append(out, admin.Node{
			Name: name, Self: name == b.cfg.Node, Addresses: object.Spec.Addresses,
			PodCIDRs: object.Spec.PodCIDRs, Endpoints: ix.perNode[name],
		})
	}
	slices.SortFunc(out, func(x, y admin.Node) int { return cmp.Compare(x.Name, y.Name) })
	return out, nil
}

// followBuffer is how many records may wait for a follower of the API.
const followBuffer = 1024

// Flows implements admin.Backend.
func (b *backend) Flows(ctx context.Context, query admin.FlowQuery,
	send func(flows.Flow) error) error {
	match, err := query.Compile()
	if err != nil {
		return err
	}
	if !query.Follow {
		return sendAll(b.hub.Last(query.Last, match), send)
	}
	past, follower := b.hub.Follow(query.Last, match, followBuffer)
	defer follower.Close()
	if err := sendAll(past, send); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case flow := <-follower.C():
			if err := send(flow); err != nil {
				return err
			}
		}
	}
}

func sendAll(records []flows.Flow, send func(flows.Flow) error) error {
	for _, flow := range records {
		if err := send(flow); err != nil {
			return err
		}
	}
	return nil
}

// FlowTable implements admin.Backend.
func (b *backend) FlowTable(_ context.Context, limit int) ([]admin.TableFlow, error) {
	running, err := b.up()
	if err != nil {
		return nil, err
	}
	rows, err := running.dp.Flows(limit)
	if err != nil {
		return nil, fmt.Errorf("read flow table: %w", err)
	}
	out := make([]admin.TableFlow, len(rows))
	for i, row := range rows {
		out[i] = admin.TableFlow{
			Network: row.Network, Source: b.peer(row.Network, row.Src),
			Destination: b.peer(row.Network, row.Dst), Protocol: flows.ProtocolName(row.Protocol),
			State: row.State, Age: row.Age.Round(time.Millisecond).String(),
			Idle:     row.Idle.Round(time.Millisecond).String(),
			ViaStack: row.ViaStack, Forward: row.Forward, Reply: row.Reply,
		}
	}
	return out, nil
}

func (b *backend) peer(network uint32, addr netip.AddrPort) flows.Peer {
	peer := flows.Peer{IP: addr.Addr().Unmap(), Port: addr.Port()}
	peer.Identity, _ = names{b.Agent}.ByIP(network, peer.IP)
	return peer
}

// Drops implements admin.Backend.
func (b *backend) Drops(_ context.Context, all bool) ([]admin.Drop, error) {
	running, err := b.up()
	if err != nil {
		return nil, err
	}
	counters, err := running.dp.Counters()
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	var out []admin.Drop
	happened := map[string]bool{}
	for _, row := range counters {
		if row.Reason == "" || row.Packets == 0 {
			continue
		}
		happened[row.Reason] = true
		drop := admin.Drop{Reason: row.Reason, Text: reasonText(row.Reason),
			Hint: reasonHint(row.Reason), Direction: row.Direction, Traffic: row.Traffic}
		if info, ok := running.manager.BySlot(row.Slot); ok {
			drop.Endpoint = describe(info, nil).Name()
		}
		out = append(out, drop)
	}
	for _, label := range reasonLabels() {
		if all && !happened[label] {
			out = append(out,
				admin.Drop{Reason: label, Text: reasonText(label), Hint: reasonHint(label)})
		}
	}
	slices.SortFunc(out, func(x, y admin.Drop) int {
		return cmp.Or(cmp.Compare(y.Packets, x.Packets), cmp.Compare(x.Reason, y.Reason),
			cmp.Compare(x.Endpoint, y.Endpoint))
	})
	return out, nil
}

// Trace implements admin.Backend.
func (b *backend) Trace(_ context.Context, request admin.TraceRequest) (*admin.TraceResult, error) {
	running, err := b.up()
	if err != nil {
		return nil, err
	}
	info, to, protocol, err := traceArguments(running, request)
	if err != nil {
		return nil, &admin.StatusError{Code: http.StatusBadRequest, Msg: err.Error()}
	}
	trace, err := running.dp.Trace(info.Datapath(), to, protocol)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	b.nameSteps(running, info, to.Addr(), trace.Steps)
	identity, _ := names{b.Agent}.ByIP(info.NetworkID, to.Addr())
	return &admin.TraceResult{
		From: describe(info, nil).Name(), To: request.To, ToName: identity.Name(),
		Protocol: flows.ProtocolName(protocol),
		Trace:    *trace, ReasonText: reasonText(trace.Reason), Hint: reasonHint(trace.Reason),
	}, nil
}

func traceArguments(running *node,
	request admin.TraceRequest) (endpoint.Info, netip.AddrPort, uint8, error) {
	info, ok := running.manager.Get(request.From)
	if !ok {
		return info, netip.AddrPort{}, 0, fmt.Errorf("from: this node has no endpoint %q: `weft endpoint list` shows them", request.From)
	}
	to, err := netip.ParseAddrPort(request.To)
	if err != nil {
		return info, to, 0, fmt.Errorf("to: %q is not ADDRESS:PORT (an IPv6 address in brackets)",
			request.To)
	}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if to.Addr().Is4() && !info.IPv4.IsValid() {
		return info, to, 0, errors.New("to: the endpoint has no IPv4 address to send from")
	}
	if to.Addr().Is6() && !info.IPv6.IsValid() {
		return info, to, 0, errors.New("to: the endpoint has no IPv6 address to send from")
	}
	protocol, err := flows.ParseProtocol(cmp.Or(request.Protocol, "tcp"))
	if err != nil {
		return info, to, 0, fmt.Errorf("protocol: %w", err)
	}
	return info, to, protocol, nil
}

// Metrics implements metrics.Source.
func (a *Agent) Metrics() (metrics.Snapshot, error) {
	ix := a.index.Load()
	snapshot := metrics.Snapshot{
		Ready: a.readiness().Ready, Nodes: len(ix.snapshot.Nodes),
		ObjectErrors: len(ix.snapshot.Errors),
		Flows:        a.hub.Stats(), Endpoints: map[uint16]metrics.Endpoint{},
	}
	running := a.running()
	if running == nil {
		return snapshot, nil
	}
	for _, info := range running.manager.List() {
		snapshot.Endpoints[info.Slot] = metrics.Endpoint{ID: info.ID, Namespace: info.Namespace,
			Pod: info.Pod}
	}
	snapshot.Mode = running.dp.ModeStatus()
	var errCounters, errEvents, errEncrypt, errBudgets error
	snapshot.Encryption, errEncrypt = a.encryptMetrics(running)
	snapshot.Counters, errCounters = running.dp.Counters()
	snapshot.Events, errEvents = running.dp.EventStats()
	snapshot.Budgets, errBudgets = running.dp.Budgets()
	snapshot.FlowShare = running.dp.FlowShare()
	return snapshot, errors.Join(errCounters, errEvents, errEncrypt, errBudgets)
}
