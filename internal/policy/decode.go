package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config/strictyaml"
)

// Objects are what files declare, as far as policies depend on it.
type Objects struct {
	Policies   []*Policy
	Pods       []Pod
	Namespaces map[string]map[string]string
	// Ranges are those that nodes' pods have their addresses from.
	Ranges []netip.Prefix
}

// Pod is a pod that a file declares.
type Pod struct {
	Endpoint
	ServiceAccount string
	// HostNetwork pods share their node's addresses: no policy is about them.
	HostNetwork bool
}

// kindsApart are groups of other policies, which would be taken to be in force if nobody spoke.
var kindsApart = []string{
	"policy.networking.k8s.io", "security.istio.io", "cilium.io", "crd.projectcalico.org",
	"projectcalico.org",
}

// MaxSize is the size of the largest file that is read, in bytes: all pods of a cluster fit.
const MaxSize = 64 << 20

const (
	groupNetworking = "networking.k8s.io"
	versionNetwork  = groupNetworking + "/v1"
)

// Decode reads the policies, pods and namespaces of one file, in Kubernetes' and in Weft's own
// formats. Objects of other kinds are left out, but for other policies, which are problems. A
// policy with problems is among the policies, and denies; its problems are not told twice.
func Decode(file string, data []byte) (*Objects, []Problem) {
	d := &decoding{objects: &Objects{Namespaces: map[string]map[string]string{}}}
	docs, errs := strictyaml.SplitUpTo(MaxSize, file, data)
	for _, e := range errs {
		d.problems = append(d.problems, problemOf(e, ""))
	}
	for _, doc := range docs {
		d.document(doc)
	}
	return d.objects, d.problems
}

type decoding struct {
	objects  *Objects
	problems []Problem
}

func (d *decoding) fail(doc *strictyaml.Doc, object, field, format string, args ...any) {
	d.problems = append(d.problems, Problem{
		File: doc.File, Line: doc.Line(field), Object: object, Field: field,
		Msg: fmt.Sprintf(format, args...),
	})
}

func (d *decoding) document(doc *strictyaml.Doc) {
	version, kind := doc.Text("apiVersion"), doc.Text("kind")
	group, _, _ := strings.Cut(version, "/")
	switch {
	case version == "" || kind == "":
		d.fail(doc, "", "", "has no apiVersion or no kind, so nobody knows what it is: give both")
	case kinds[kind].in(version):
		d.objects.Policies = append(d.objects.Policies, decodePolicy(doc))
	case kind == KindNetworkPolicy && (group == groupNetworking || group == "extensions"):
		d.fail(doc, kind, "apiVersion", "is %q: want %s", version, versionNetwork)
	case group == groupNetworking && strictyaml.Nearest(kind, []string{KindNetworkPolicy}) != "":
		d.fail(doc, "", "kind", "is %q: did you mean %s?", kind, KindNetworkPolicy)
	case version == "v1" && strings.HasSuffix(kind, "List") ||
		slices.Contains(Kinds(), strings.TrimSuffix(kind, "List")):
		for _, item := range doc.Items("items") {
			d.document(item)
		}
	case slices.Contains(kindsApart, group):
		d.fail(doc, kind, "kind",
			"%s of %s is not read, so nothing enforces this one: say it as one of %s, or take it away",
			kind, version, strings.Join(Kinds(), ", "))
	case version == "v1" && kind == "Pod":
		d.pod(doc)
	case version == "v1" && kind == "Namespace":
		d.namespace(doc)
	case (version == "v1" || version == v1alpha1.APIVersion) && kind == v1alpha1.KindNode:
		d.node(doc)
	case version == v1alpha1.APIVersion &&
		(kind == v1alpha1.KindPod || kind == v1alpha1.KindEndpoint):
		d.own(doc, v1alpha1.New(kind))
	}
}

// manifest is a policy as it is written: strict where it says what is allowed.
type manifest[Spec any] struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	Metadata   metav1.ObjectMeta `yaml:"metadata"`
	Spec       Spec              `yaml:"spec"`
	// Status is what others make of it.
	Status map[string]any `yaml:"status"`
}

// decodePolicy reads a policy, nil for an object of another kind.
func decodePolicy(doc *strictyaml.Doc) *Policy {
	if kind := doc.Text("kind"); kinds[kind].in(doc.Text("apiVersion")) {
		return kinds[kind].decode(doc)
	}
	return nil
}

func decodeInto(doc *strictyaml.Doc, m any) source {
	from := source{file: doc.File, line: doc.Line}
	for _, e := range doc.Decode(m) {
		from.problems = append(from.problems, problemOf(e, ""))
	}
	return from
}

// kubePod is what matters of a Kubernetes pod.
type kubePod struct {
	Metadata v1alpha1.ObjectMeta `yaml:"metadata"`
	Spec     struct {
		ServiceAccountName string `yaml:"serviceAccountName"`
		HostNetwork        bool   `yaml:"hostNetwork"`
		InitContainers     []struct {
			RestartPolicy string     `yaml:"restartPolicy"`
			Ports         []kubePort `yaml:"ports"`
		} `yaml:"initContainers"`
		Containers []struct {
			Ports []kubePort `yaml:"ports"`
		} `yaml:"containers"`
	} `yaml:"spec"`
	Status struct {
		Phase  string `yaml:"phase"`
		PodIP  string `yaml:"podIP"`
		PodIPs []struct {
			IP string `yaml:"ip"`
		} `yaml:"podIPs"`
	} `yaml:"status"`
}

type kubePort struct {
	Name          string `yaml:"name"`
	ContainerPort uint16 `yaml:"containerPort"`
	Protocol      string `yaml:"protocol"`
}

// meta checks what an object of another than Weft's own kinds is called.
func (d *decoding) meta(doc *strictyaml.Doc, kind string, m *v1alpha1.ObjectMeta) bool {
	if msg := v1alpha1.CheckName(m.Name); msg != "" {
		d.fail(doc, kind, "metadata.name", "%s", msg)
		return false
	}
	return true
}

func (d *decoding) pod(doc *strictyaml.Doc) {
	var k kubePod
	if err := doc.Root.Decode(&k); err != nil {
		d.fail(doc, "Pod", "", "cannot be read: %s", oneLine(err))
		return
	}
	if !d.meta(doc, "Pod", &k.Metadata) || k.Status.Phase == "Succeeded" ||
		k.Status.Phase == "Failed" {
		return
	}
	p := Pod{ServiceAccount: cmp.Or(k.Spec.ServiceAccountName, v1alpha1.DefaultServiceAccount),
		HostNetwork: k.Spec.HostNetwork}
	p.Namespace, p.Name, p.Labels = cmp.Or(k.Metadata.Namespace,
		v1alpha1.DefaultNamespace), k.Metadata.Name, k.Metadata.Labels
	texts := []string{k.Status.PodIP}
	for _, ip := range k.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	for _, text := range texts {
		if err := p.addAddress(text); err != nil {
			d.fail(doc, "Pod "+p.Key(), "status.podIPs", "%q is no IP address", text)
		}
	}
	for _, c := range k.Spec.InitContainers {
		if c.RestartPolicy == "Always" {
			p.addPorts(c.Ports)
		}
	}
	for _, c := range k.Spec.Containers {
		p.addPorts(c.Ports)
	}
	d.objects.Pods = append(d.objects.Pods, p)
}

func (d *decoding) namespace(doc *strictyaml.Doc) {
	var k struct {
		Metadata v1alpha1.ObjectMeta `yaml:"metadata"`
	}
	if err := doc.Root.Decode(&k); err != nil {
		d.fail(doc, "Namespace", "", "cannot be read: %s", oneLine(err))
		return
	}
	if d.meta(doc, "Namespace", &k.Metadata) {
		d.objects.Namespaces[k.Metadata.Name] = k.Metadata.Labels
	}
}

// node reads the ranges of a node's pods, which Kubernetes and Weft call the same.
func (d *decoding) node(doc *strictyaml.Doc) {
	var k struct {
		Spec struct {
			PodCIDRs []netip.Prefix `yaml:"podCIDRs"`
		} `yaml:"spec"`
	}
	if err := doc.Root.Decode(&k); err != nil {
		d.fail(doc, v1alpha1.KindNode, "spec.podCIDRs", "cannot be read: %s", oneLine(err))
		return
	}
	for _, p := range k.Spec.PodCIDRs {
		d.objects.Ranges = append(d.objects.Ranges, p.Masked())
	}
}

// own reads a Pod or an Endpoint of Weft's.
func (d *decoding) own(doc *strictyaml.Doc, o v1alpha1.Object) {
	errs := doc.Decode(o)
	o.SetDefaults()
	object := o.Type().Kind + " " + o.Meta().Key()
	for _, e := range errs {
		d.problems = append(d.problems, problemOf(e, object))
	}
	for _, f := range o.Validate() {
		if !strictyaml.Covered(f.Field, errs) {
			d.fail(doc, object, f.Field, "%s", f.Msg)
		}
	}
	m := o.Meta()
	p := Pod{Endpoint: Endpoint{Namespace: m.Namespace, Name: m.Name, Labels: m.Labels}}
	switch o := o.(type) {
	case *v1alpha1.Pod:
		p.ServiceAccount, p.Addresses, p.Ports = o.Spec.ServiceAccount, o.Spec.Addresses, PortsOf(o.Spec.Ports)
	case *v1alpha1.Endpoint:
		p.ServiceAccount, p.Addresses, p.Ports = o.Spec.ServiceAccount, o.Spec.Addresses, PortsOf(o.Spec.Ports)
	}
	d.objects.Pods = append(d.objects.Pods, p)
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ")
}
