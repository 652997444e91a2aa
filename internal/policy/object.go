package policy

import (
	"encoding/json"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config/strictyaml"
)

// Type implements v1alpha1.Object.
func (p *Policy) Type() *v1alpha1.TypeMeta {
	return &v1alpha1.TypeMeta{APIVersion: kinds[p.Kind].versions[0], Kind: p.Kind}
}

// Meta implements v1alpha1.Object.
func (p *Policy) Meta() *v1alpha1.ObjectMeta {
	return &v1alpha1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.labels,
		Annotations: p.annotations}
}

// SetDefaults implements v1alpha1.Object: there are none.
func (p *Policy) SetDefaults() {}

// Validate implements v1alpha1.Object: what makes the policy deny.
func (p *Policy) Validate() []v1alpha1.FieldError {
	var out []v1alpha1.FieldError
	for _, problem := range p.errors() {
		out = append(out, v1alpha1.FieldError{Field: problem.Field, Msg: problem.Msg})
	}
	return out
}

// written is a policy as users write it.
type written struct {
	v1alpha1.TypeMeta `yaml:",inline"`
	Metadata          writtenMeta `json:"metadata" yaml:"metadata"`
	// Spec is what JSON makes of it: Kubernetes' types have no other names.
	Spec map[string]any `json:"spec" yaml:"spec"`
}

type writtenMeta struct {
	v1alpha1.ObjectMeta `yaml:",inline"`
	CreationTimestamp   string `json:"creationTimestamp,omitempty" yaml:"creationTimestamp,omitempty"`
}

func (p *Policy) written() (w written, err error) {
	text, err := json.Marshal(p.spec)
	if err != nil {
		return w, err
	}
	w = written{TypeMeta: *p.Type(), Metadata: writtenMeta{ObjectMeta: *p.Meta()}}
	if p.peerAuth != nil && !p.peerAuth.created.IsZero() {
		w.Metadata.CreationTimestamp = p.peerAuth.created.Format(time.RFC3339)
	}
	return w, json.Unmarshal(text, &w.Spec)
}

// MarshalYAML implements yaml.Marshaler.
func (p *Policy) MarshalYAML() (any, error) { return p.written() }

// MarshalJSON implements json.Marshaler.
func (p *Policy) MarshalJSON() ([]byte, error) {
	w, err := p.written()
	if err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// Same says whether two policies mean the same, wherever they are written.
func (p *Policy) Same(o *Policy) bool { return p.content == o.content }

// IsClosed says whether the policy is what Closed or Isolating has made.
func (p *Policy) IsClosed() bool { return p.closed }

// Closed is the policy as one that only denies: of one that is declared several times and differs
// nobody knows which is meant.
func (p *Policy) Closed() *Policy {
	closed := *p
	closed.closed = true
	closed.rules = [2][]rule{}
	if closed.authorization != nil && closed.applies[Ingress] {
		closed.deny()
	}
	if closed.cluster != nil {
		closed.closeTo()
	}
	if closed.peerAuth != nil {
		closed.closePeerAuth()
	}
	closed.content = "closed " + p.content
	return &closed
}

// DecodeObject reads a policy, nil for an object of another kind. It is to be used although there
// are errors: left out, it would allow.
func DecodeObject(doc *strictyaml.Doc) (o v1alpha1.Object, errs []strictyaml.Error) {
	p := decodePolicy(doc)
	if p == nil {
		return nil, nil
	}
	for _, problem := range p.errors() {
		errs = append(errs,
			strictyaml.Error{File: problem.File, Line: problem.Line, Field: problem.Field,
				Msg: problem.Msg})
	}
	return p, errs
}
