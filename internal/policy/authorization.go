package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// KindAuthorizationPolicy is the kind of Istio's that is read, of security.istio.io/v1 and of
// v1beta1, which is the same.
const KindAuthorizationPolicy = "AuthorizationPolicy"

// DryRunAnnotation has an AuthorizationPolicy only listed (Istio's dry run).
const DryRunAnnotation = "istio.io/dry-run"

const (
	groupIstio        = "security.istio.io"
	versionIstio      = groupIstio + "/v1"
	versionIstioOlder = groupIstio + "/v1beta1"
)

// authorizationSpec is Istio's AuthorizationPolicy. Its own Go type is a protobuf message, whose
// decoder knows no lines; test/istio holds the fields of both against each other.
type authorizationSpec struct {
	Selector   *workloadSelector   `yaml:"selector" json:"selector,omitempty"`
	TargetRef  *targetReference    `yaml:"targetRef" json:"targetRef,omitempty"`
	TargetRefs []targetReference   `yaml:"targetRefs" json:"targetRefs,omitempty"`
	Rules      []authorizationRule `yaml:"rules" json:"rules,omitempty"`
	Action     string              `yaml:"action" json:"action,omitempty"`
	Provider   *struct {
		Name string `yaml:"name" json:"name"`
	} `yaml:"provider" json:"provider,omitempty"`
}

type workloadSelector struct {
	MatchLabels map[string]string `yaml:"matchLabels" json:"matchLabels,omitempty"`
}

type targetReference struct {
	Group     string `yaml:"group" json:"group,omitempty"`
	Kind      string `yaml:"kind" json:"kind,omitempty"`
	Name      string `yaml:"name" json:"name,omitempty"`
	Namespace string `yaml:"namespace" json:"namespace,omitempty"`
}

type authorizationRule struct {
	From []struct {
		Source *authorizationSource `yaml:"source" json:"source,omitempty"`
	} `yaml:"from" json:"from,omitempty"`
	To []struct {
		Operation *authorizationOperation `yaml:"operation" json:"operation,omitempty"`
	} `yaml:"to" json:"to,omitempty"`
	When []authorizationCondition `yaml:"when" json:"when,omitempty"`
}

type authorizationSource struct {
	Principals           []string `yaml:"principals" json:"principals,omitempty"`
	NotPrincipals        []string `yaml:"notPrincipals" json:"notPrincipals,omitempty"`
	RequestPrincipals    []string `yaml:"requestPrincipals" json:"requestPrincipals,omitempty"`
	NotRequestPrincipals []string `yaml:"notRequestPrincipals" json:"notRequestPrincipals,omitempty"`
	Namespaces           []string `yaml:"namespaces" json:"namespaces,omitempty"`
	NotNamespaces        []string `yaml:"notNamespaces" json:"notNamespaces,omitempty"`
	ServiceAccounts      []string `yaml:"serviceAccounts" json:"serviceAccounts,omitempty"`
	NotServiceAccounts   []string `yaml:"notServiceAccounts" json:"notServiceAccounts,omitempty"`
	TrustDomains         []string `yaml:"trustDomains" json:"trustDomains,omitempty"`
	NotTrustDomains      []string `yaml:"notTrustDomains" json:"notTrustDomains,omitempty"`
	IPBlocks             []string `yaml:"ipBlocks" json:"ipBlocks,omitempty"`
	NotIPBlocks          []string `yaml:"notIpBlocks" json:"notIpBlocks,omitempty"`
	RemoteIPBlocks       []string `yaml:"remoteIpBlocks" json:"remoteIpBlocks,omitempty"`
	NotRemoteIPBlocks    []string `yaml:"notRemoteIpBlocks" json:"notRemoteIpBlocks,omitempty"`
}

type authorizationOperation struct {
	Hosts      []string `yaml:"hosts" json:"hosts,omitempty"`
	NotHosts   []string `yaml:"notHosts" json:"notHosts,omitempty"`
	Ports      []string `yaml:"ports" json:"ports,omitempty"`
	NotPorts   []string `yaml:"notPorts" json:"notPorts,omitempty"`
	Methods    []string `yaml:"methods" json:"methods,omitempty"`
	NotMethods []string `yaml:"notMethods" json:"notMethods,omitempty"`
	Paths      []string `yaml:"paths" json:"paths,omitempty"`
	NotPaths   []string `yaml:"notPaths" json:"notPaths,omitempty"`
}

type authorizationCondition struct {
	Key       string   `yaml:"key" json:"key,omitempty"`
	Values    []string `yaml:"values" json:"values,omitempty"`
	NotValues []string `yaml:"notValues" json:"notValues,omitempty"`
}

// authorization is what an AuthorizationPolicy says at layer 4, as Istio's ztunnel takes it.
type authorization struct {
	// deny: what a rule is about is denied. Otherwise what no rule of any policy is about is.
	deny  bool
	rules []term
}

// readAuthorization checks an AuthorizationPolicy. One with errors denies all to the pods it
// selects: whether it was to allow or to deny what is wrong in it nobody knows.
func readAuthorization(meta metav1.ObjectMeta, spec *authorizationSpec, from source) *Policy {
	r := newReader(KindAuthorizationPolicy, meta, spec, from)
	p := r.policy
	p.subject, p.authorization = labels.Everything(), &authorization{}
	if spec.Selector != nil {
		p.subject = r.matchLabels("spec.selector.matchLabels", spec.Selector.MatchLabels)
	}
	p.applies[Ingress] = r.enforced(meta, spec)
	for i := range spec.Rules {
		r.authorizationRule(fmt.Sprintf("spec.rules[%d]", i), &spec.Rules[i])
	}
	// What would enforce nothing without its mistakes does not with them, unless one of these is
	// whether it would.
	if p.Broken() && (p.enforced() || spec.Selector != nil && spec.targets()) {
		if r.maySelect("selector", "targetRef", "targetRefs", "rules", "action", "provider") {
			p.subject = labels.Everything()
		}
		p.deny()
	}
	p.content = contentOf(p)
	return p
}

// maySelect says whether nobody can tell which pods a policy of Istio's is about: its selector
// cannot be read, or a key of spec is none of the known ones and may have been meant to be one.
func (r *reader) maySelect(known ...string) bool {
	return slices.ContainsFunc(r.policy.errors(), func(p Problem) bool {
		key, inSpec := p.specKey()
		return strings.HasPrefix(p.Field, "spec.selector") ||
			inSpec && !slices.Contains(known, key) ||
			!inSpec && !strings.HasPrefix(p.Field, "metadata.")
	})
}

// deny makes an AuthorizationPolicy one that denies all to the pods that it selects.
func (p *Policy) deny() {
	p.applies = [2]bool{Ingress: true}
	p.authorization = &authorization{deny: true, rules: []term{p.denial()}}
}

// denial is the rule of a policy that only denies.
func (p *Policy) denial() term {
	return term{at: Rule{
		Kind: p.Kind, Name: p.Key(), Field: "which only denies, as something is wrong with it",
		File: p.file, Line: p.line,
	}}
}

// matchLabels reads the selector of Istio's kinds.
func (r *reader) matchLabels(field string, set map[string]string) labels.Selector {
	before, out := len(r.policy.Problems), labels.NewSelector()
	for _, key := range sortedKeys(set) {
		if strings.Contains(key+set[key], "*") {
			r.fail(field+"["+key+"]", "has a *, which selectors do not know: write the label out")
			continue
		}
		out = r.require(out, field+"["+key+"]", key, selection.Equals, []string{set[key]})
	}
	if len(r.policy.Problems) > before {
		return labels.Nothing()
	}
	return out
}

// targets says whether a policy is for a proxy.
func (s *authorizationSpec) targets() bool { return s.TargetRef != nil || len(s.TargetRefs) > 0 }

// enforced says whether a policy does more than to be listed.
func (r *reader) enforced(meta metav1.ObjectMeta, spec *authorizationSpec) bool {
	targets := spec.targets()
	if targets && spec.Selector != nil {
		r.fail("spec.selector", "goes with no targetRef: give one of the two")
	}
	switch spec.Action {
	case "", "ALLOW":
	case "DENY":
		r.policy.authorization.deny = true
		if len(spec.Rules) == 0 {
			r.warn("spec.rules", "is empty, so nothing is denied: {} as a rule denies all")
		}
	case "AUDIT":
		r.warn("spec.action", "AUDIT is only listed: nothing is allowed or denied by it")
	case "CUSTOM":
		if !targets {
			r.fail("spec.action",
				"CUSTOM asks a server outside, which nothing does at layer 4, so all is denied: "+
					"give the policy targetRefs to a proxy that does, or say it with ALLOW and DENY")
		}
	default:
		r.fail("spec.action", "is %q: want ALLOW, DENY, AUDIT or CUSTOM", spec.Action)
	}
	switch dry := meta.Annotations[DryRunAnnotation]; {
	case targets:
		r.warn("spec",
			"is for what its targetRefs name, a proxy's to enforce: nothing is allowed or denied by it here")
		return false
	case spec.Action == "AUDIT":
		return false
	case dry != "":
		only, err := strconv.ParseBool(dry)
		if err != nil {
			r.warn("metadata.annotations["+DryRunAnnotation+"]",
				"is %q, and the policy is in force: want true or false", dry)
		} else if only {
			r.warn("metadata.annotations["+DryRunAnnotation+"]",
				"the policy is only listed: nothing is allowed or denied by it")
		}
		return !only
	}
	return true
}

// authorizationRule reads one rule. What it says of requests cannot be seen at layer 4: a rule that
// is to allow is left out then, and one that is to deny denies without that part.
func (r *reader) authorizationRule(field string, in *authorizationRule) {
	p := r.policy
	rule := &ruleReader{reader: r, at: field}
	out := term{at: Rule{Kind: p.Kind, Name: p.Key(), Field: field, File: r.file,
		Line: r.lineOf(field)}}
	var from, to []match
	for i, s := range in.From {
		from = append(from, rule.source(fmt.Sprintf("%s.from[%d].source", field, i), s.Source))
	}
	for i, o := range in.To {
		to = append(to, rule.operation(fmt.Sprintf("%s.to[%d].operation", field, i), o.Operation))
	}
	for _, alternatives := range [][]match{from, to} {
		if len(alternatives) > 0 {
			out.clauses = append(out.clauses, alternatives)
		}
	}
	for i := range in.When {
		out.clauses = append(out.clauses,
			[]match{rule.when(fmt.Sprintf("%s.when[%d]", field, i), &in.When[i])})
	}
	if len(rule.requests) > 0 && p.applies[Ingress] {
		what := strings.Join(rule.requests, ", ")
		if p.authorization.deny {
			r.warn(field, "%s cannot be seen at layer 4: the rule denies whatever they are", what)
		} else {
			r.warn(field, "%s cannot be seen at layer 4: the rule allows nothing", what)
		}
	}
	if p.authorization.deny || len(rule.requests) == 0 {
		p.authorization.rules = append(p.authorization.rules, out)
	}
}
