// Package endpoint makes, remembers and removes workload interfaces.
//
// Manager is the one owner of a node's endpoints: the veth pair, addresses, routes and
// neighbours of each, its slot in the datapath, and the record on disk that survives the
// agent. It knows nothing of CNI, Docker or Kubernetes; the fronts translate.
//
// Every change is written ahead: a record exists on disk before the first thing it
// names is made, and goes only after the last one is gone. Whatever a crash leaves
// behind is therefore named by a record, and Restore finishes or undoes it.
package endpoint

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
)

// The gateway that every pod sees, the same on all nodes so that a pod can move. The datapath
// answers for it.
var (
	GatewayIPv4 = datapath.GatewayIPv4
	GatewayIPv6 = datapath.GatewayIPv6
)

// GatewayMAC is the address of every host-side veth that Weft makes. Do not change it.
var GatewayMAC = net.HardwareAddr{0x02, 0x57, 0x45, 0x46, 0x54, 0x01}

// RouteProtocol marks the kernel routes that Weft owns.
const RouteProtocol = datapath.RouteProtocol

// MaxSlot is the highest slot an endpoint can have; slot 0 is the node itself.
const MaxSlot = datapath.MaxEndpoints - 1

// Datapath attaches programs to endpoints. All calls are idempotent.
// *datapath.Datapath implements it.
type Datapath interface {
	// AttachEndpoint attaches the hooks and fills the maps, replacing what was there.
	AttachEndpoint(datapath.Endpoint) error
	// DetachEndpoint undoes AttachEndpoint, also when the interface is already gone.
	DetachEndpoint(datapath.Endpoint) error
	// CheckEndpoint says which hook or map entry of an attached endpoint is missing.
	CheckEndpoint(datapath.Endpoint) error
}

// Policies has the policy sets of endpoints.
type Policies interface {
	// Of returns the sets with which an endpoint is to be attached, which are in the datapath then.
	Of(Info) (egress, ingress uint32, err error)
	// Attached is told how that has ended, and returns err, or what of policies failed since Of.
	Attached(info Info, err error) error
}

// Directory is where endpoints are published for other nodes. store.Store satisfies it.
type Directory interface {
	PutEndpoint(*v1alpha1.Endpoint) error
	DeleteEndpoint(key string) error
}

// MaxAddresses is how many addresses an endpoint can have.
const MaxAddresses = datapath.MaxAddresses

// State is how far an endpoint has come.
type State string

// The states. Only StateReady endpoints are listed or published.
const (
	// StateCreating is written ahead of everything an ADD makes.
	StateCreating State = "creating"
	// StateReady means complete.
	StateReady State = "ready"
	// StateDeleting means that a removal began and has not finished.
	StateDeleting State = "deleting"
	// StateGone means that only the published object is left to delete.
	StateGone State = "gone"
)

// Info is one endpoint as the manager remembers it.
type Info struct {
	ID          string            `json:"id"`
	ContainerID string            `json:"containerID"`
	IfName      string            `json:"ifName"`
	Network     string            `json:"network,omitempty"` // the CNI network's name
	Namespace   string            `json:"namespace"`
	Pod         string            `json:"pod"`
	PodUID      string            `json:"podUID,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Ports are the named ones that the pod was declared with.
	Ports []v1alpha1.NamedPort `json:"ports,omitempty"`
	// ServiceAccount is "default" unless the pod was declared with another.
	ServiceAccount string `json:"serviceAccount"`
	// Identity is the number that other nodes know the endpoint's packets by, 0 while it has
	// none: then nothing of it is sealed, and so nothing reaches another node.
	Identity uint32 `json:"identity,omitempty"`
	// Encrypt is the pod's annotation ebpf.xdp/encrypt as it was declared.
	Encrypt string `json:"encrypt,omitempty"`
	// PodDatapath is the pod's annotation ebpf.xdp/datapath as it was declared, CNIDatapath what
	// the request asked for.
	PodDatapath string `json:"datapath,omitempty"`
	CNIDatapath string `json:"cniDatapath,omitempty"`
	Slot        uint16 `json:"slot"`
	HostIf      string `json:"hostIf"`
	NetNS       string `json:"netns"`
	PodIf       string `json:"podIf"`
	MAC         string `json:"mac"`
	GatewayMAC  string `json:"gatewayMAC"`
	// IPv4 and IPv6 are the first of each family, More those besides.
	IPv4 netip.Addr   `json:"ipv4,omitzero"`
	IPv6 netip.Addr   `json:"ipv6,omitzero"`
	More []netip.Addr `json:"more,omitempty"`
	// NetworkID is the network that the addresses are of; 0 is the cluster's.
	NetworkID uint32    `json:"networkID,omitempty"`
	MTU       int       `json:"mtu"`
	Chained   bool      `json:"chained"`
	State     State     `json:"state"`
	Created   time.Time `json:"created"`
}

// Key is "namespace/pod", the pod's name in the objects directory.
func (i Info) Key() string { return i.Namespace + "/" + i.Pod }

// XDPDatapath tells whether the endpoint asks for the XDP datapath.
func (i Info) XDPDatapath() bool {
	return i.PodDatapath == v1alpha1.DatapathXDP || i.CNIDatapath == v1alpha1.DatapathXDP
}

// DatapathAsker names who asks for the XDP datapath, or what is wrong with how it is asked for; ""
// if nobody does.
func (i Info) DatapathAsker() string {
	switch {
	case i.PodDatapath == v1alpha1.DatapathXDP:
		return "annotation " + v1alpha1.DatapathAnnotation
	case i.CNIDatapath == v1alpha1.DatapathXDP:
		return "CNI"
	case i.PodDatapath != "":
		return fmt.Sprintf("annotation %s is %q: want %q", v1alpha1.DatapathAnnotation,
			i.PodDatapath, v1alpha1.DatapathXDP)
	}
	return ""
}

// Addresses returns the endpoint's addresses, the first of each family first, IPv4 before IPv6.
func (i Info) Addresses() []netip.Addr {
	return datapath.Endpoint{IPv4: i.IPv4, IPv6: i.IPv6, More: i.More}.Addresses()
}

// addAddress puts an address behind those that are there.
func (i *Info) addAddress(a netip.Addr) {
	switch {
	case a.Is4() && !i.IPv4.IsValid():
		i.IPv4 = a
	case a.Is6() && !i.IPv6.IsValid():
		i.IPv6 = a
	default:
		i.More = append(slices.Clip(i.More), a)
	}
}

// Datapath returns the endpoint as the datapath sees it.
func (i Info) Datapath() datapath.Endpoint {
	mac, _ := net.ParseMAC(i.MAC)
	gateway, _ := net.ParseMAC(i.GatewayMAC)
	return datapath.Endpoint{
		Slot: i.Slot, HostIf: i.HostIf, NetNS: i.NetNS, PodIf: i.PodIf,
		MAC: mac, GatewayMAC: gateway, IPv4: i.IPv4, IPv6: i.IPv6, More: i.More,
		Network: i.NetworkID,
		MTU:     i.MTU, Identity: i.Identity, Chained: i.Chained, XDPDatapath: i.XDPDatapath(),
	}
}

// Attachment names one interface of one container.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// AddRequest asks for an interface.
type AddRequest struct {
	Attachment
	// NetNS is the path of the container's network namespace.
	NetNS string
	// Network is the name of the network that asks; GCNetwork removes by it. Optional.
	Network string
	// Namespace, Pod and PodUID name the workload. Default: "default" and the short container ID.
	Namespace, Pod, PodUID string
	// Labels are added to those that the pod was declared with. Optional.
	Labels map[string]string
	// Addresses asks for fixed addresses, at most MaxAddresses; they win over the declared ones.
	// Optional.
	Addresses []netip.Addr
	// NetworkID is the network that the endpoint is in, at most datapath.MaxNetwork; 0 is the
	// cluster's.
	NetworkID uint32
	// Chained adopts the interface that an earlier plugin made instead of making one;
	// Addresses then says what that plugin gave it.
	Chained bool
	// PodDatapath is v1alpha1.DatapathXDP to ask for the XDP datapath, as the pod's annotation can.
	// Optional.
	PodDatapath string
}

// AddResult is what Add made or found.
type AddResult struct {
	Info
	// Routes are the pod's routes; none for a chained endpoint.
	Routes []Route
}

// Route is a route inside the pod. Gateway is invalid for an on-link destination.
type Route struct {
	Dst     netip.Prefix
	Gateway netip.Addr
}

// DelRequest asks for the removal of an interface. NetNS may be empty or gone.
type DelRequest struct {
	Attachment
	NetNS string
}

// CheckRequest asks whether an interface is still as Add made it.
type CheckRequest struct {
	Attachment
	// NetNS is compared with the recorded namespace unless empty.
	NetNS string
	// Addresses must be the endpoint's, unless nil.
	Addresses []netip.Addr
}
