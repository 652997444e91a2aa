package policy

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weft.dev/weft/api/v1alpha1"
)

// Policy is a policy as it was read: its rules, or what it denies because something is wrong with
// it. It does not change any more.
type Policy struct {
	// Kind is one of Kinds. Those for administrators have no namespace.
	Kind            string
	Namespace, Name string
	// Problems are what is wrong with it. Unless all are warnings, it allows nothing, and isolates
	// the pods it selects or, where its selector cannot be read, those of its whole namespace.
	Problems []Problem

	subject labels.Selector
	applies [2]bool
	rules   [2][]rule
	// content tells a version of a policy from every other.
	content string
	file    string
	line    int
	// spec is a pointer to what the kind's specification is decoded to.
	spec any
	// authorization is nil for other kinds.
	authorization *authorization
	// cluster is nil for other kinds.
	cluster *cluster
	// peerAuth is nil for other kinds.
	peerAuth *peerAuthentication
	// closed says that it only denies, for a reason that is not in Problems: see Closed.
	closed bool
	// labels and annotations are the object's own, and mean nothing here.
	labels, annotations map[string]string
}

// Key is NAMESPACE/NAME, or NAME.
func (p *Policy) Key() string { return p.Meta().Key() }

// apart says whether sets with the policy are made from verdicts: see conjunction.
func (p *Policy) apart() bool { return p.authorization != nil || p.cluster != nil }

// Object is kind and name, for messages.
func (p *Policy) Object() string { return p.Kind + " " + p.Key() }

// Broken says whether the policy only denies.
func (p *Policy) Broken() bool { return len(p.errors()) > 0 }

// errors are the Problems that are no warnings.
func (p *Policy) errors() (out []Problem) {
	for _, problem := range p.Problems {
		if !problem.Warning {
			out = append(out, problem)
		}
	}
	return out
}

// Applies says whether a policy isolates the pods it selects in that direction.
func (p *Policy) Applies(d Direction) bool { return p.applies[d] }

// enforced says whether the policy is about any direction, or only listed.
func (p *Policy) enforced() bool { return p.applies != [2]bool{} }

// source is where a policy was written, and what its reader has found already.
type source struct {
	file     string
	line     func(field string) int
	problems []Problem
}

// reader gathers what is wrong with a policy.
type reader struct {
	source
	policy *Policy
}

// newReader begins to read a policy of some kind.
func newReader(kind string, meta metav1.ObjectMeta, spec any, from source) *reader {
	p := &Policy{
		Kind: kind, Namespace: meta.Namespace, Name: meta.Name, Problems: from.problems, spec: spec,
		labels: meta.Labels, annotations: meta.Annotations,
	}
	if p.Namespace == "" && !clusterWide(kind) {
		p.Namespace = v1alpha1.DefaultNamespace
	}
	if clusterWide(kind) {
		p.Namespace = ""
	}
	r := &reader{source: from, policy: p}
	p.file, p.line = from.file, r.lineOf("")
	for i := range p.Problems {
		p.Problems[i].Object = p.Object()
	}
	if msg := v1alpha1.CheckName(p.Name); msg != "" {
		r.fail("metadata.name", "%s", msg)
	}
	if msg := v1alpha1.CheckLabel(p.Namespace); msg != "" && !clusterWide(kind) {
		r.fail("metadata.namespace", "%s", msg)
	}
	return r
}

func (r *reader) fail(field, format string, args ...any) {
	// What could not be decoded is empty here, which is no mistake of its own.
	for _, known := range r.problems {
		if known.Field != "" && strings.HasPrefix(field+".", known.Field+".") {
			return
		}
	}
	r.add(field, false, fmt.Sprintf(format, args...))
}

func (r *reader) warn(field, format string, args ...any) {
	r.add(field, true, fmt.Sprintf(format, args...))
}

func (r *reader) add(field string, warning bool, msg string) {
	r.policy.Problems = append(r.policy.Problems, Problem{
		File: r.file, Line: r.lineOf(field), Object: r.policy.Object(), Field: field, Msg: msg,
		Warning: warning,
	})
}

func (r *reader) lineOf(field string) int {
	if r.line == nil {
		return 0
	}
	return r.line(field)
}

// contentOf is the same for policies that say the same, and have the same mistakes.
func contentOf(p *Policy) string {
	problems := slices.Clone(p.Problems)
	for i := range problems {
		problems[i].File, problems[i].Line = "", 0
	}
	text, err := json.Marshal(struct {
		Kind, Key string
		Problems  []Problem
		Applies   [2]bool
		Spec      any
	}{p.Kind, p.Key(), problems, p.applies, p.spec})
	if err != nil {
		// Nothing in it can fail to be written; a version that is like no other costs a new set.
		text = fmt.Appendf(nil, "%p", p)
	}
	sum := sha256.Sum256(text)
	return string(sum[:16])
}
