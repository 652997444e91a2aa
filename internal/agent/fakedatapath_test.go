package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
)

// fakeDatapath is the world as a datapath.
type fakeDatapath struct {
	*world
	fakePolicies
}

func (d fakeDatapath) AttachEndpoint(datapath.Endpoint) error { return nil }
func (d fakeDatapath) DetachEndpoint(datapath.Endpoint) error { return nil }
func (d fakeDatapath) Close() error                           { d.mu.Lock(); d.closed = true; d.mu.Unlock(); return nil }
func (d fakeDatapath) EnterEndpoints(list []datapath.Endpoint) error {
	d.note("endpoints entered")
	d.entered = list
	return nil
}
func (d fakeDatapath) Prune(keep []datapath.Endpoint) error {
	d.note("pruned")
	d.pruned = keep
	return nil
}
func (d fakeDatapath) SetNodes(_ context.Context, nodes []datapath.Node) error {
	d.note("nodes")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes = nodes
	return d.nodesErr
}
func (d fakeDatapath) NodeProblems() []datapath.NodeProblem {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodeProblems
}
func (d fakeDatapath) Inherited() []datapath.Inherited { return d.inherited }
func (d fakeDatapath) Run(ctx context.Context) error   { <-ctx.Done(); return nil }
func (d fakeDatapath) Events(ctx context.Context, handle func(datapath.FlowEvent)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-d.events:
			handle(event)
		}
	}
}
func (d fakeDatapath) EventStats() (datapath.EventStats, error) {
	return datapath.EventStats{Suppressed: 3}, nil
}
func (d fakeDatapath) Counters() ([]datapath.Counter, error) {
	return []datapath.Counter{
		{Slot: 1, Direction: "egress", Verdict: "forward",
			Traffic: datapath.Traffic{Packets: 5, Bytes: 500}},
		{Slot: 1, Direction: "egress", Verdict: "drop", Reason: "spoofed_ip",
			Traffic: datapath.Traffic{Packets: 2, Bytes: 84}},
	}, nil
}
func (d fakeDatapath) Budgets() ([]datapath.Budget, error) {
	return []datapath.Budget{{Slot: 1, Direction: "egress", Flows: 9, FlowsEvicted: 4,
		FlowsRefused: 1}, {Slot: 1, Direction: "ingress", Flows: 2, EventsSuppressed: 3}}, nil
}
func (d fakeDatapath) FlowShare() uint32 { return 9 }
func (d fakeDatapath) Flows(limit int) ([]datapath.Flow, error) {
	return []datapath.Flow{{Src: netip.MustParseAddrPort("10.1.0.2:1"),
		Dst: netip.MustParseAddrPort("10.2.0.2:80"), Protocol: 6}}, nil
}
func (d fakeDatapath) Trace(from datapath.Endpoint, to netip.AddrPort,
	protocol uint8) (*datapath.Trace, error) {
	return &datapath.Trace{Verdict: "forward", NextHop: fmt.Sprint(from.Slot, to, protocol)}, nil
}
func (d fakeDatapath) ModeStatus() datapath.ModeStatus {
	return datapath.ModeStatus{Asked: "auto", Active: "tc", Why: "of the test"}
}
func (d fakeDatapath) PodDatapath(ep datapath.Endpoint) datapath.PodDatapath {
	return datapath.PodDatapath{Name: "tc", Why: "of the test", Refused: ep.XDPDatapath}
}
func (d fakeDatapath) Links() ([]datapath.LinkStatus, error)   { return nil, nil }
func (d fakeDatapath) CheckEndpoint(datapath.Endpoint) error   { return nil }
func (d fakeDatapath) Problems() []string                      { return d.host.problems }
func (d fakeDatapath) Notes() []datapath.Note                  { return d.host.notes }
func (d fakeDatapath) HostChanges() <-chan datapath.HostChange { return d.host.changes }

func (d fakeDatapath) Associations() (Associations, error) { return d, nil }

func (d fakeDatapath) InstallSA(*esp.SA) error                                { return nil }
func (d fakeDatapath) RemoveSAs(string, bool, uint8) error                    { return nil }
func (d fakeDatapath) ExtendSAs(string, bool, uint8, uint64, time.Time) error { return nil }
func (d fakeDatapath) SealWith(string, uint8) error                           { return nil }
func (d fakeDatapath) SAs() ([]esp.SAStatus, error)                           { return d.sealing.sas, nil }
func (d fakeDatapath) Sealing() ([]esp.Sealing, error)                        { return nil, nil }
func (d fakeDatapath) Lanes() int                                             { return 2 }
func (d fakeDatapath) VMGeneration() (uint64, error)                          { return 0, nil }
func (d fakeDatapath) VMForks(ctx context.Context,
	_ func()) error {
	<-ctx.Done()
	return nil
}
func (d fakeDatapath) DeclareVMFork() error { return nil }
func (d fakeDatapath) VMForkStatus() esp.VMForkStatus {
	return esp.VMForkStatus{Detection: esp.VMForkFentry, Why: "of the test"}
}
func (d fakeDatapath) EngineStatus() esp.EngineStatus {
	return esp.EngineStatus{Asked: "auto", Active: "bpf", Why: "of the test"}
}
func (d fakeDatapath) SetPlain(plain []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sealing.plainErr != nil {
		return d.sealing.plainErr
	}
	d.sealing.plain = plain
	return nil
}
func (d fakeDatapath) Plain() ([]netip.Prefix, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sealing.plain, nil
}
func (d fakeDatapath) SetPeerIdentities(identities map[string][]uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sealing.identities = identities
	return nil
}
