package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/policy"
)

// reasonPolicy is the drop reason of what policies refuse.
var reasonPolicy = bpf.ReasonPolicyDenied.String()

// Policies implements admin.Backend.
func (b *backend) Policies(context.Context) (*admin.Policies, error) {
	view, running, err := b.policyView()
	if err != nil {
		return nil, err
	}
	counters, err := running.dp.Counters()
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	denied := map[string]uint64{}
	for _, row := range counters {
		if info, ok := running.manager.BySlot(row.Slot); ok && row.Reason == reasonPolicy {
			denied[podName(info)] += row.Packets
		}
	}
	out := &admin.Policies{Node: b.cfg.Node, Policies: view.Policies(), Pods: []admin.PolicedPod{}}
	for _, pod := range view.Pods() {
		out.Pods = append(out.Pods, admin.PolicedPod{PodPolicies: pod, Denied: denied[pod.Pod]})
	}
	b.stateLock.Lock()
	if text := b.problems["policies"]; text != "" {
		out.Problems = append(out.Problems, text)
	}
	b.stateLock.Unlock()
	return out, nil
}

// policyView is what was compiled last.
func (b *backend) policyView() (*policyView, *node, error) {
	running, err := b.up()
	if err != nil {
		return nil, nil, err
	}
	view := running.policies.view.Load()
	if view == nil {
		return nil, nil, &admin.StatusError{Code: http.StatusServiceUnavailable,
			Msg: "policies have not been compiled yet"}
	}
	return view, running, nil
}

// Policy implements admin.Backend.
func (b *backend) Policy(_ context.Context, kind, key string) (*admin.PolicyDetail, error) {
	view, running, err := b.policyView()
	if err != nil {
		return nil, err
	}
	var found []policy.Summary
	var kinds []string
	for _, s := range view.Policies() {
		if s.Key() == key && (kind == "" || strings.EqualFold(kind, s.Kind)) {
			found, kinds = append(found, s), append(kinds, s.Kind)
		}
	}
	switch {
	case len(found) == 0:
		return nil, &admin.StatusError{Code: http.StatusNotFound,
			Msg: fmt.Sprintf("node %s knows no policy %s: `weft policy list` shows those it knows",
				b.cfg.Node, key)}
	case len(found) > 1 && found[0].Kind != found[1].Kind:
		return nil, &admin.StatusError{Code: http.StatusBadRequest,
			Msg: fmt.Sprintf("several policies are %s: name the kind, such as %s/%s (of %s)", key,
				kinds[0], key, strings.Join(kinds, ", "))}
	}
	out := &admin.PolicyDetail{Node: b.cfg.Node, Summary: found[0], Sets: []admin.PolicySet{}}
	for _, set := range view.SetsOf(found[0].Object()) {
		out.Sets = append(out.Sets,
			admin.PolicySet{SetView: set, Kernel: running.policies.kernelSet(set.Number)})
	}
	return out, nil
}

// kernelSet is a compiled set's number in the datapath.
func (p *policies) kernelSet(number uint32) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sets[number].number
}
