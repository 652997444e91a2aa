package agent

import (
	"context"
	"net/http"
	"net/netip"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/front/cni"
	"weft.dev/weft/internal/keys/sadb"
)

// Datapath is what the agent needs of *datapath.Datapath.
type Datapath interface {
	endpoint.Datapath
	policyDatapath
	Close() error
	EnterEndpoints([]datapath.Endpoint) error
	Prune(keep []datapath.Endpoint) error
	SetNodes(ctx context.Context, nodes []datapath.Node) error
	NodeProblems() []datapath.NodeProblem
	Inherited() []datapath.Inherited
	Run(ctx context.Context) error
	Events(ctx context.Context, handle func(datapath.FlowEvent)) error
	EventStats() (datapath.EventStats, error)
	Counters() ([]datapath.Counter, error)
	Budgets() ([]datapath.Budget, error)
	FlowShare() uint32
	Flows(limit int) ([]datapath.Flow, error)
	Trace(from datapath.Endpoint, to netip.AddrPort, protocol uint8) (*datapath.Trace, error)
	ModeStatus() datapath.ModeStatus
	PodDatapath(datapath.Endpoint) datapath.PodDatapath
	Links() ([]datapath.LinkStatus, error)
	Problems() []string
	Notes() []datapath.Note
	HostChanges() <-chan datapath.HostChange

	// Associations are the keys of sealed packets, or datapath.ErrClosed or ErrEncryptionOff.
	Associations() (Associations, error)
	SetPlain([]netip.Prefix) error
	Plain() ([]netip.Prefix, error)
	SetPeerIdentities(map[string][]uint32) error
}

// Associations is what the agent and its keys need of *esp.Associations.
type Associations interface {
	sadb.Datapath
	EngineStatus() esp.EngineStatus
	VMForkStatus() esp.VMForkStatus
	VMForks(ctx context.Context, forked func()) error
	DeclareVMFork() error
}

// opened is the real datapath.
type opened struct{ *datapath.Datapath }

func (o opened) Associations() (Associations, error) {
	sas, err := o.Datapath.Associations()
	if err != nil {
		return nil, err
	}
	return sas, nil
}

// Endpoints is what the agent needs of *endpoint.Manager.
type Endpoints interface {
	Restore(ctx context.Context) error
	Sync(ctx context.Context) error
	Mend(ctx context.Context, hostIfs ...string) error
	Unseen() error
	Problems() []string
	Status() error
	List() []endpoint.Info
	Get(nameOrID string) (endpoint.Info, bool)
	BySlot(slot uint16) (endpoint.Info, bool)
	ByIP(network uint32, addr netip.Addr) (endpoint.Info, bool)
}

// openEndpoints makes the endpoint manager and the CNI plugin's way to it.
func openEndpoints(options endpoint.Options) (Endpoints, http.Handler, error) {
	manager, err := endpoint.NewManager(options)
	if err != nil {
		return nil, nil, err
	}
	return manager, cni.Handler(manager), nil
}
