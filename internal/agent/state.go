package agent

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/front/cni"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/ranges"
	"weft.dev/weft/internal/store"
)

// wait says what the agent waits for.
func (a *Agent) wait(reason string) {
	a.stateLock.Lock()
	changed := a.waiting != reason
	a.waiting = reason
	a.stateLock.Unlock()
	if changed {
		a.log.Info("waiting", "for", reason)
		a.tell("STATUS=waiting for " + strings.ReplaceAll(reason, "\n", " "))
	}
}

// tell tells the service manager.
func (a *Agent) tell(lines string) {
	if err := a.opt.Notify(lines); err != nil {
		a.log.Warn("the service manager does not hear", "err", err)
	}
}

// setReady ends the waiting, once.
func (a *Agent) setReady() {
	a.stateLock.Lock()
	first := !a.ready
	a.ready, a.waiting = true, ""
	a.stateLock.Unlock()
	if first {
		a.tell("STATUS=ready")
		mode := a.running().dp.ModeStatus()
		a.log.Info("ready", "after", a.sinceStart(), "mode", mode.Active, "why", mode.Why,
			"endpoints", len(a.running().manager.List()))
	}
}

func (a *Agent) readiness() admin.Readiness {
	a.stateLock.Lock()
	defer a.stateLock.Unlock()
	return admin.Readiness{Ready: a.ready, Waiting: a.waiting}
}

// problem notes, or with a nil error forgets, something that does not work.
func (a *Agent) problem(what string, err error) {
	a.stateLock.Lock()
	before := a.problems[what]
	if err == nil {
		delete(a.problems, what)
	} else {
		a.problems[what] = err.Error()
	}
	a.stateLock.Unlock()
	if err != nil && before != err.Error() {
		a.log.Error("problem", "err", err)
	}
}

// maxNotes is how many of the agent's own notes are kept.
const maxNotes = 8

// note remembers something that happened and was put in order.
func (a *Agent) note(text string) {
	a.stateLock.Lock()
	defer a.stateLock.Unlock()
	a.noted = append(a.noted,
		datapath.Note{Time: time.Now().UTC().Truncate(time.Second), Text: text})
	a.noted = a.noted[max(0, len(a.noted)-maxNotes):]
}

// notes are the agent's and the datapath's, oldest first.
func (a *Agent) notes(n *node) []datapath.Note {
	a.stateLock.Lock()
	all := append(n.dp.Notes(), a.noted...)
	a.stateLock.Unlock()
	slices.SortStableFunc(all, func(x, y datapath.Note) int { return x.Time.Compare(y.Time) })
	return all
}

func (a *Agent) problemList() []string {
	a.stateLock.Lock()
	defer a.stateLock.Unlock()
	return slices.Sorted(maps.Values(a.problems))
}

// index is a snapshot of the store with what is looked up in it per flow.
type index struct {
	snapshot *store.Snapshot
	// byIP are those who have an address: endpoints by their keys, then the node. There is one,
	// unless by mistake.
	byIP    map[netip.Addr][]flows.Identity
	perNode map[string]int
	// byRange is the node of each range of pods, lengths those of the ranges, the longest first.
	byRange map[netip.Prefix]string
	lengths []int
	// numbers are those of workload identities, by their keys.
	numbers map[string]uint32
	// view is what the snapshot means with what was known before, nil without encryption.
	view *ranges.View
}

func newIndex(snapshot *store.Snapshot) *index {
	ix := &index{
		snapshot: snapshot, byIP: map[netip.Addr][]flows.Identity{}, perNode: map[string]int{},
		byRange: map[netip.Prefix]string{},
		numbers: identity.Numbers(maps.Values(snapshot.Identities)),
	}
	for name, node := range snapshot.Nodes {
		for _, prefix := range node.Spec.PodCIDRs {
			ix.byRange[prefix] = name
			if !slices.Contains(ix.lengths, prefix.Bits()) {
				ix.lengths = append(ix.lengths, prefix.Bits())
			}
		}
		for _, addr := range node.Spec.Addresses {
			ix.byIP[addr] = []flows.Identity{{Node: name}}
		}
	}
	for _, ep := range snapshot.Endpoints {
		ix.addEndpoint(ep)
	}
	slices.SortFunc(ix.lengths, func(a, b int) int { return b - a })
	return ix
}

// with is another index, one step further. What the step is not about is shared with the one
// before, which stays as it is.
func (ix *index) with(d store.Delta) *index {
	if d.About(v1alpha1.KindNode) {
		next := newIndex(ix.snapshot.With(d))
		next.view = ix.view
		return next
	}
	next := *ix
	next.snapshot = ix.snapshot.With(d)
	if d.About(v1alpha1.KindIdentity) {
		next.numbers = identity.Numbers(maps.Values(next.snapshot.Identities))
	}
	if !d.About(v1alpha1.KindEndpoint) {
		return &next
	}
	next.byIP, next.perNode = maps.Clone(ix.byIP), maps.Clone(ix.perNode)
	for _, c := range d.Changes {
		if c.Kind != v1alpha1.KindEndpoint {
			continue
		}
		if before := ix.snapshot.Endpoints[c.Key]; before != nil {
			next.removeEndpoint(before)
		}
		if now := next.snapshot.Endpoints[c.Key]; now != nil {
			next.addEndpoint(now)
		}
	}
	return &next
}

func (ix *index) addEndpoint(ep *v1alpha1.Endpoint) {
	ix.perNode[ep.Spec.NodeName]++
	who := flows.Identity{
		Number: ep.Status.Identity, Namespace: ep.Metadata.Namespace, Pod: ep.Metadata.Name,
		Node:           ep.Spec.NodeName,
		ServiceAccount: ep.Spec.ServiceAccount, Labels: ep.Metadata.Labels,
	}
	for _, addr := range ep.Spec.Addresses {
		list := append(slices.Clip(ix.byIP[addr]), who)
		slices.SortStableFunc(list, func(a, b flows.Identity) int {
			nodesLast := cmp.Compare(min(len(b.Pod), 1), min(len(a.Pod), 1))
			return cmp.Or(nodesLast, cmp.Compare(a.Namespace, b.Namespace),
				cmp.Compare(a.Pod, b.Pod))
		})
		ix.byIP[addr] = list
	}
}

func (ix *index) removeEndpoint(ep *v1alpha1.Endpoint) {
	if ix.perNode[ep.Spec.NodeName]--; ix.perNode[ep.Spec.NodeName] == 0 {
		delete(ix.perNode, ep.Spec.NodeName)
	}
	for _, addr := range ep.Spec.Addresses {
		rest := slices.DeleteFunc(slices.Clone(ix.byIP[addr]), func(who flows.Identity) bool {
			return who.Namespace == ep.Metadata.Namespace && who.Pod == ep.Metadata.Name
		})
		if ix.byIP[addr] = rest; len(rest) == 0 {
			delete(ix.byIP, addr)
		}
	}
}

// who has an address.
func (ix *index) who(addr netip.Addr) (flows.Identity, bool) {
	if list := ix.byIP[addr]; len(list) > 0 {
		return list[0], true
	}
	return flows.Identity{}, false
}

// nodeOf is the node that an address belongs to, "" for none.
func (ix *index) nodeOf(addr netip.Addr) string {
	if known, ok := ix.who(addr); ok {
		return known.Node
	}
	for _, bits := range ix.lengths {
		if prefix, err := addr.Prefix(bits); err == nil && ix.byRange[prefix] != "" {
			return ix.byRange[prefix]
		}
	}
	return ""
}

// names tells flows who is behind a slot or an address: this node's own endpoints
// first, then what the other nodes have published.
type names struct{ agent *Agent }

func (n names) identity(info endpoint.Info) flows.Identity {
	return flows.Identity{
		Number: info.Identity, Namespace: info.Namespace, Pod: info.Pod, Node: n.agent.cfg.Node,
		ServiceAccount: info.ServiceAccount, Labels: info.Labels,
	}
}

// BySlot implements flows.Resolver.
func (n names) BySlot(slot uint16) (flows.Identity, bool) {
	if running := n.agent.running(); running != nil {
		if info, ok := running.manager.BySlot(slot); ok {
			return n.identity(info), true
		}
	}
	return flows.Identity{}, false
}

// ByIP implements flows.Resolver.
func (n names) ByIP(network uint32, addr netip.Addr) (flows.Identity, bool) {
	if running := n.agent.running(); running != nil {
		if info, ok := running.manager.ByIP(network, addr); ok {
			return n.identity(info), true
		}
	}
	if network != 0 {
		return flows.Identity{}, false // what other nodes publish is the cluster's
	}
	return n.agent.index.Load().who(addr)
}

// cniDoor hands requests of the CNI plugin to the manager's handler and, until there is
// one, answers in CNI's terms that the plugin should try again.
type cniDoor struct {
	handler atomic.Pointer[http.Handler]
	waiting func() string
}

func (d *cniDoor) open(handler http.Handler) { d.handler.Store(&handler) }

// ServeHTTP implements http.Handler.
func (d *cniDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if handler := d.handler.Load(); handler != nil {
		(*handler).ServeHTTP(w, r)
		return
	}
	code, details := types.ErrTryAgainLater, ""
	if strings.HasSuffix(r.URL.Path, "/status") {
		code, details = types.ErrPluginNotAvailable, cni.Starting
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(types.NewError(code,
		"the Weft agent is not ready: it waits for "+d.waiting(), details))
}
