package policy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// remembered is a policy that outlives the process that read it.
type remembered struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// File is where it was declared: what is missing there while that file is broken is no less in force.
	File string                          `json:"file"`
	Spec *networkingv1.NetworkPolicySpec `json:"spec"`
	// Closed policies had mistakes, or were declared in several ways. Which is forgotten, and that they deny is not.
	Closed bool `json:"closed,omitempty"`
}

// Remember writes policies down, for Recall.
func Remember(list []*Policy) ([]byte, error) {
	list = slices.SortedFunc(slices.Values(list), func(a, b *Policy) int {
		return cmp.Or(cmp.Compare(a.Key(), b.Key()), cmp.Compare(a.file, b.file), cmp.Compare(a.content, b.content))
	})
	out := make([]remembered, 0, len(list))
	for _, p := range list {
		out = append(out, remembered{Namespace: p.Namespace, Name: p.Name, File: p.file, Spec: p.spec, Closed: p.Broken() || p.closed})
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("write policies down: %w", err)
	}
	return data, nil
}

// Recall reads what Remember wrote, and where each policy was declared.
func Recall(data []byte) (list []*Policy, files []string, err error) {
	var in []remembered
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, nil, fmt.Errorf("policies of a previous run: %w", err)
	}
	for _, r := range in {
		if r.Spec == nil {
			r.Spec, r.Closed = &networkingv1.NetworkPolicySpec{}, true
		}
		p := read(&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}, Spec: *r.Spec,
		}, source{file: r.File})
		if r.Closed && !p.Broken() {
			p = p.Isolating()
		}
		list, files = append(list, p), append(files, r.File)
	}
	return list, files, nil
}

// Isolating is the policy as one that denies all to all pods of its namespace: nobody knows any more what
// was wrong with it.
func (p *Policy) Isolating() *Policy {
	closed := p.Closed()
	closed.applies = [2]bool{true, true}
	closed.subject = labels.Everything()
	return closed
}
