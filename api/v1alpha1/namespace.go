package v1alpha1

// NamespaceVersion is the apiVersion of a Namespace: it is Kubernetes' own kind, of which only name
// and labels matter here.
const NamespaceVersion = "v1"

// Namespace has the labels by which policies select namespaces. One that is declared nowhere has
// its name as label, as every namespace: kubernetes.io/metadata.name.
type Namespace struct {
	TypeMeta `yaml:",inline"`
	Metadata ObjectMeta `yaml:"metadata" json:"metadata"`
}

// Meta implements Object.
func (n *Namespace) Meta() *ObjectMeta { return &n.Metadata }

// Type implements Object.
func (n *Namespace) Type() *TypeMeta { return &n.TypeMeta }

// SetDefaults implements Object.
func (n *Namespace) SetDefaults() { n.TypeMeta.setDefaults(KindNamespace) }

// Validate implements Object.
func (n *Namespace) Validate() []FieldError {
	v := newValidator(n, KindNamespace)
	if n.Metadata.Namespace != "" {
		v.fail("metadata.namespace", "a Namespace has no namespace: take it away")
	}
	if msg := CheckLabel(n.Metadata.Name); msg != "" && CheckName(n.Metadata.Name) == "" {
		v.fail("metadata.name", "%s", msg)
	}
	return v.errs
}
