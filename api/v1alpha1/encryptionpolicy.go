package v1alpha1

import (
	"fmt"
	"net/netip"
)

// EncryptAnnotation on a Pod says whether its packets are sealed between nodes, over
// what any EncryptionPolicy says: "true" or "false".
const EncryptAnnotation = "ebpf.xdp/encrypt"

// The values of EncryptAnnotation.
const (
	EncryptTrue  = "true"
	EncryptFalse = "false"
)

// maxSelected bounds each list of an EncryptionPolicy.
const maxSelected = 256

// EncryptionPolicy names what may cross between nodes in cleartext. Everything that no
// policy names is sealed. A policy with a namespace is about pods of that namespace;
// one without is about the whole cluster.
type EncryptionPolicy struct {
	TypeMeta `yaml:",inline"`
	Metadata ObjectMeta           `yaml:"metadata" json:"metadata"`
	Spec     EncryptionPolicySpec `yaml:"spec" json:"spec"`
}

// EncryptionPolicySpec says what may be plain: selected pods, ranges, or both.
type EncryptionPolicySpec struct {
	// Selector chooses pods. In a policy with a namespace, an empty one chooses all of its pods.
	Selector *PodSelector `yaml:"selector,omitempty" json:"selector,omitempty"`
	// CIDRs are ranges whose addresses may be plain; only in a policy without a namespace.
	CIDRs []netip.Prefix `yaml:"cidrs,omitempty" json:"cidrs,omitempty"`
}

// PodSelector chooses pods: those of any of the namespaces that have all of the labels.
type PodSelector struct {
	// Namespaces are names; only in a policy without a namespace. Empty: all.
	Namespaces  []string          `yaml:"namespaces,omitempty" json:"namespaces,omitempty"`
	MatchLabels map[string]string `yaml:"matchLabels,omitempty" json:"matchLabels,omitempty"`
}

// Meta implements Object.
func (p *EncryptionPolicy) Meta() *ObjectMeta { return &p.Metadata }

// Type implements Object.
func (p *EncryptionPolicy) Type() *TypeMeta { return &p.TypeMeta }

// SetDefaults implements Object.
func (p *EncryptionPolicy) SetDefaults() { p.TypeMeta.setDefaults(KindEncryptionPolicy) }

// Validate implements Object. A policy that would make everything plain by what it
// leaves out is refused: leaving out must never open.
func (p *EncryptionPolicy) Validate() []FieldError {
	v := newValidator(p, KindEncryptionPolicy)
	if p.Metadata.Namespace != "" {
		v.namespace(p.Metadata.Namespace)
		p.validateNamespaced(v)
	} else {
		p.validateCluster(v)
	}
	if s := p.Spec.Selector; s != nil {
		v.selector(s)
	}
	v.cidrs("spec.cidrs", p.Spec.CIDRs)
	return v.errs
}

func (p *EncryptionPolicy) validateNamespaced(v *validator) {
	if len(p.Spec.CIDRs) > 0 {
		v.fail("spec.cidrs",
			"a policy of one namespace cannot open ranges: take metadata.namespace or the ranges away")
	}
	if p.Spec.Selector == nil {
		v.fail("spec.selector",
			"is missing: give matchLabels, or selector: {} for all pods of namespace %s",
			p.Metadata.Namespace)
	} else if len(p.Spec.Selector.Namespaces) > 0 {
		v.fail("spec.selector.namespaces",
			"a policy of one namespace selects pods of its own: take metadata.namespace or these away")
	}
}

func (p *EncryptionPolicy) validateCluster(v *validator) {
	s := p.Spec.Selector
	switch {
	case s == nil && len(p.Spec.CIDRs) == 0:
		v.fail("spec", "selects nothing: give a selector or cidrs")
	case s != nil && len(s.Namespaces) == 0 && len(s.MatchLabels) == 0:
		v.fail("spec.selector",
			"is empty and would select every pod: give namespaces or matchLabels, or switch encryption off in the agents' configuration")
	}
}

func (v *validator) selector(s *PodSelector) {
	if len(s.Namespaces) > maxSelected || len(s.MatchLabels) > maxSelected {
		v.fail("spec.selector", "has more than %d namespaces or labels: write several policies",
			maxSelected)
		return
	}
	for i, ns := range s.Namespaces {
		if msg := CheckLabel(ns); msg != "" {
			v.fail(fmt.Sprintf("spec.selector.namespaces[%d]", i), "%s", msg)
		}
	}
	for _, k := range sortedKeys(s.MatchLabels) {
		field := "spec.selector.matchLabels[" + k + "]"
		if msg := checkLabelKey(k); msg != "" {
			v.fail(field, "%s", msg)
		}
		if msg := checkLabelValue(s.MatchLabels[k]); msg != "" {
			v.fail(field, "%s", msg)
		}
	}
}

// cidrs are like ranges, but may overlap, for instance those of policies of two teams.
func (v *validator) cidrs(field string, ranges []netip.Prefix) {
	if len(ranges) > maxSelected {
		v.fail(field, "are %d ranges: want at most %d", len(ranges), maxSelected)
		return
	}
	for i, p := range ranges {
		if msg := CheckRange(p); msg != "" {
			v.fail(fmt.Sprintf("%s[%d]", field, i), "%s", msg)
		}
	}
}

// CheckEncryptAnnotation says what is wrong with the annotation of a pod, "" if nothing.
func CheckEncryptAnnotation(annotations map[string]string) string {
	value, there := annotations[EncryptAnnotation]
	if !there || value == EncryptTrue || value == EncryptFalse {
		return ""
	}
	return fmt.Sprintf("is %s: want %q or %q; until then the pod is sealed", quote(value),
		EncryptTrue, EncryptFalse)
}
