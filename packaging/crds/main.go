// Command crds writes the definitions of Weft's custom resources, made from the types of
// api/v1alpha1: packaging/kubernetes/crds.yaml.
//
// controller-gen does not fit those types: it wants metav1.TypeMeta and ObjectMeta embedded, and
// takes netip.Addr for a struct.
package main

import (
	"bytes"
	"fmt"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"weft.dev/weft/api/v1alpha1"
)

const (
	group   = "weft.dev"
	version = "v1alpha1"
)

// definition is what the types do not say of a custom resource.
type definition struct {
	kind, plural, short string
	namespaced          bool
	object              v1alpha1.Object
	columns             []apiextensions.CustomResourceColumnDefinition
	// rules are for the object, specRules for its spec.
	rules, specRules apiextensions.ValidationRules
}

func column(name, kind, path string) apiextensions.CustomResourceColumnDefinition {
	return apiextensions.CustomResourceColumnDefinition{Name: name, Type: kind, JSONPath: path}
}

func rule(expression, message string) apiextensions.ValidationRule {
	return apiextensions.ValidationRule{Rule: expression, Message: message}
}

var age = column("Age", "date", ".metadata.creationTimestamp")

var definitions = []definition{
	{
		kind: v1alpha1.KindEndpoint, plural: "endpoints", short: "wep", namespaced: true,
		object: &v1alpha1.Endpoint{},
		columns: []apiextensions.CustomResourceColumnDefinition{
			column("Node", "string", ".spec.nodeName"),
			column("Addresses", "string", ".spec.addresses"),
			column("Identity", "integer", ".status.identity"),
			column("Phase", "string", ".status.phase"), age},
		rules: apiextensions.ValidationRules{
			rule("self.metadata.name.endsWith('.' + self.spec.nodeName)",
				"metadata.name is not POD.NODE with spec.nodeName: agents write Endpoints, nobody else has to")},
	},
	{
		kind: v1alpha1.KindIdentity, plural: "identities", short: "wid",
		object: &v1alpha1.Identity{},
		columns: []apiextensions.CustomResourceColumnDefinition{
			column("SPIFFE ID", "string", ".spec.spiffeID"),
			column("Labels", "string", ".spec.labels"), age},
		specRules: apiextensions.ValidationRules{rule("self == oldSelf",
			"a number is given once: it cannot become another identity's")},
	},
	{
		kind: v1alpha1.KindEpoch, plural: "epochs", short: "wepoch", object: &v1alpha1.Epoch{},
		columns: []apiextensions.CustomResourceColumnDefinition{
			column("Created", "date", ".spec.created"), column("Expires", "string", ".spec.expires"),
			column("KEK", "string", ".spec.kek")},
	},
	{
		kind: v1alpha1.KindEncryptionPolicy, plural: "encryptionpolicies", short: "wenc",
		namespaced: true, object: &v1alpha1.EncryptionPolicy{},
		columns: []apiextensions.CustomResourceColumnDefinition{
			column("Labels", "string", ".spec.selector.matchLabels"), age},
		specRules: apiextensions.ValidationRules{
			rule("has(self.selector) && !has(self.selector.namespaces)",
				"spec.selector is missing or has namespaces: a policy of one namespace selects pods of its own, {} is all"),
			rule("!has(self.cidrs)",
				"a policy of one namespace cannot open ranges: use a ClusterEncryptionPolicy")},
	},
	{
		kind: "ClusterEncryptionPolicy", plural: "clusterencryptionpolicies", short: "wcenc",
		object: &v1alpha1.EncryptionPolicy{},
		columns: []apiextensions.CustomResourceColumnDefinition{
			column("Namespaces", "string", ".spec.selector.namespaces"),
			column("Labels", "string", ".spec.selector.matchLabels"),
			column("Ranges", "string", ".spec.cidrs"), age},
		specRules: apiextensions.ValidationRules{
			rule("has(self.selector) || has(self.cidrs)",
				"selects nothing: give a selector or cidrs"),
			rule("!has(self.selector) || has(self.selector.namespaces) || has(self.selector.matchLabels)",
				"spec.selector is empty and would select every pod: give namespaces or matchLabels")},
	},
}

// of is the whole definition.
func (d definition) of(docs comments) *apiextensions.CustomResourceDefinition {
	scope := apiextensions.ClusterScoped
	if d.namespaced {
		scope = apiextensions.NamespaceScoped
	}
	schema := docs.object(d.object)
	schema.XValidations = d.rules
	spec := schema.Properties["spec"]
	spec.XValidations = d.specRules
	schema.Properties["spec"] = spec
	return &apiextensions.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1",
			Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: d.plural + "." + group},
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: group, Scope: scope,
			Names: apiextensions.CustomResourceDefinitionNames{Plural: d.plural, Kind: d.kind,
				Singular: singular(d.kind), ListKind: d.kind + "List",
				ShortNames: []string{d.short}, Categories: []string{"weft"}},
			Versions: []apiextensions.CustomResourceDefinitionVersion{{
				Name: version, Served: true, Storage: true,
				AdditionalPrinterColumns: d.columns,
				Schema:                   &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &schema},
			}},
		},
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run reads the types' comments in the directory that is the first argument, and prints.
func run() error {
	docs, err := readComments(os.Args[1])
	if err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString("# Made by `make generate` from api/v1alpha1. Do not edit.\n")
	for _, d := range definitions {
		// Status is the API server's.
		whole := d.of(docs)
		text, err := yaml.Marshal(struct {
			metav1.TypeMeta `json:",inline"`
			Metadata        map[string]string                          `json:"metadata"`
			Spec            apiextensions.CustomResourceDefinitionSpec `json:"spec"`
		}{whole.TypeMeta, map[string]string{"name": whole.Name}, whole.Spec})
		if err != nil {
			return fmt.Errorf("write the definition of %s: %w", d.kind, err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	_, err = os.Stdout.Write(out.Bytes())
	return err
}
