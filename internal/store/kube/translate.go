package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config/strictyaml"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/store"
)

// object is one of the API's, as it was read.
type object = unstructured.Unstructured

// A translation makes of an API's object the document that store.Decode reads, so that what people
// can write wrongly is judged there, as in a directory.

// document begins a document, with name and labels.
func document(o *object, version, kind string) map[string]any {
	meta := map[string]any{"name": o.GetName()}
	if ns := o.GetNamespace(); ns != "" {
		meta["namespace"] = ns
	}
	if labels := o.GetLabels(); len(labels) > 0 {
		meta["labels"] = labels
	}
	return map[string]any{"apiVersion": version, "kind": kind, "metadata": meta}
}

// annotations adds those that Weft goes by: others may be large.
func annotations(o *object, doc map[string]any) {
	kept := map[string]string{}
	for key, value := range o.GetAnnotations() {
		if strings.HasPrefix(key, annotationPrefix) || key == policy.DryRunAnnotation {
			kept[key] = value
		}
	}
	if len(kept) > 0 {
		doc["metadata"].(map[string]any)["annotations"] = kept
	}
}

// annotationPrefix begins v1alpha1.EncryptAnnotation and the others.
const annotationPrefix = "ebpf.xdp/"

// asIs is an object of Kubernetes' or Istio's that internal/policy reads, without what others make
// of it.
func asIs(o *object) (map[string]any, error) {
	doc := document(o, o.GetAPIVersion(), o.GetKind())
	if spec, there := o.Object["spec"]; there {
		doc["spec"] = spec
	}
	annotations(o, doc)
	return doc, nil
}

// dated is asIs, with when the object was made: of several PeerAuthentications the oldest counts.
func dated(o *object) (map[string]any, error) {
	doc, err := asIs(o)
	if created, there, _ := unstructured.NestedString(o.Object, "metadata",
		"creationTimestamp"); there && created != "" && err == nil {
		doc["metadata"].(map[string]any)["creationTimestamp"] = created
	}
	return doc, err
}

// namespaceOf needs only what policies select by.
func namespaceOf(o *object) (map[string]any, error) {
	return document(o, v1alpha1.NamespaceVersion, v1alpha1.KindNamespace), nil
}

// ownObject is one of Weft's own kinds.
func ownObject(o *object) (map[string]any, error) {
	kind := o.GetKind()
	if kind == kindClusterEncryptionPolicy {
		kind = v1alpha1.KindEncryptionPolicy
	}
	doc := document(o, o.GetAPIVersion(), kind)
	if all := o.GetAnnotations(); len(all) > 0 {
		doc["metadata"].(map[string]any)["annotations"] = all
	}
	for _, part := range []string{"spec", "status"} {
		if value, there := o.Object[part]; there {
			doc[part] = value
		}
	}
	return doc, nil
}

// endpointOf is an Endpoint, whose name in the API has its node's behind it: two nodes may publish
// a pod of one name at once, while it moves, and each has an object of its own for that.
func endpointOf(o *object) (map[string]any, error) {
	doc, err := ownObject(o)
	if err != nil {
		return nil, err
	}
	node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
	name, ok := strings.CutSuffix(o.GetName(), "."+node)
	if node == "" || !ok || name == "" {
		return nil, fmt.Errorf("is not called POD.NODE by its pod and spec.nodeName %q: agents write Endpoints, remove it", node)
	}
	doc["metadata"].(map[string]any)["name"] = name
	return doc, nil
}

// nodeOf takes a node's first internal address of each family, and its pod ranges.
func nodeOf(o *object) (map[string]any, error) {
	doc := document(o, v1alpha1.APIVersion, v1alpha1.KindNode)
	var addresses []string
	have := map[bool]bool{}
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "addresses")
	for _, item := range list {
		entry, _ := item.(map[string]any)
		text, _ := entry["address"].(string)
		addr, err := netip.ParseAddr(text)
		if entry["type"] != "InternalIP" || err != nil || have[addr.Is4()] {
			continue
		}
		have[addr.Is4()] = true
		addresses = append(addresses, text)
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("has no address of type InternalIP in its status, which its kubelet or cloud provider gives: nobody can send to its pods")
	}
	ranges, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "podCIDRs")
	if first, _, _ := unstructured.NestedString(o.Object, "spec", "podCIDR"); len(ranges) == 0 &&
		first != "" {
		ranges = []string{first}
	}
	doc["spec"] = map[string]any{"addresses": addresses, "podCIDRs": ranges}
	return doc, nil
}

// podOf is what policies and endpoints need of a pod. Its addresses are its endpoint's to say: here
// they would ask for fixed ones.
func podOf(o *object) (map[string]any, error) {
	doc := document(o, v1alpha1.APIVersion, v1alpha1.KindPod)
	annotations(o, doc)
	spec := map[string]any{"uid": podUID(o)}
	for key, from := range map[string]string{"nodeName": "nodeName",
		"serviceAccount": "serviceAccountName"} {
		if value, _, _ := unstructured.NestedString(o.Object, "spec", from); value != "" {
			spec[key] = value
		}
	}
	if ports := portsOf(o); len(ports) > 0 {
		spec["ports"] = ports[:min(len(ports), v1alpha1.MaxPorts)]
	}
	doc["spec"] = spec
	return doc, nil
}

// staticHash is the annotation with the UID by which a kubelet knows a static pod: that of its Pod
// in the API, a mirror, is another.
const staticHash = "kubernetes.io/config.hash"

// podUID is the UID by which a pod's kubelet knows it.
func podUID(o *object) string {
	if hash := o.GetAnnotations()[staticHash]; hash != "" {
		return hash
	}
	return string(o.GetUID())
}

// portsOf are the named ports of a pod's containers, and of its init containers that stay
// (sidecars). Of several of one name and protocol the first counts, as for Services.
func portsOf(o *object) []v1alpha1.NamedPort {
	var out []v1alpha1.NamedPort
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "containers")
	inits, _, _ := unstructured.NestedSlice(o.Object, "spec", "initContainers")
	for _, item := range slices.Concat(containers, slices.DeleteFunc(inits, ends)) {
		container, _ := item.(map[string]any)
		list, _ := container["ports"].([]any)
		for _, item := range list {
			port, _ := item.(map[string]any)
			name, _ := port["name"].(string)
			number, _ := port["containerPort"].(int64)
			protocol, _ := port["protocol"].(string)
			named := v1alpha1.NamedPort{Name: name, Port: uint16(number), Protocol: protocol}
			same := func(p v1alpha1.NamedPort) bool {
				return p.Name == name && p.Protocol == protocol
			}
			if name != "" && !slices.ContainsFunc(out, same) {
				out = append(out, named)
			}
		}
	}
	return out
}

// ends says whether an init container ends before the pod's others start.
func ends(item any) bool {
	container, _ := item.(map[string]any)
	return container["restartPolicy"] != "Always"
}

// read translates an object, nil for one that cannot be: then the source says why.
func (r *resource) read(o *object) (*store.Source, []byte) {
	file := r.file(o.GetNamespace(), o.GetName())
	if o.GetAPIVersion() == "" { // objects of a list may leave them out
		o.SetAPIVersion(r.GroupVersion().String())
		o.SetKind(r.apiKind)
	}
	doc, err := r.translate(o)
	if err != nil {
		return wrong(file, err.Error()), nil
	}
	data, err := json.Marshal(doc)
	if err != nil {
		return wrong(file, err.Error()), nil
	}
	if slices.Contains(policy.Kinds(), r.kind) && len(data) > maxPolicy {
		return tooLarge(file, doc, len(data)), data
	}
	source := decode(file, data)
	if n := len(portsOf(o)); r.kind == v1alpha1.KindPod && n > v1alpha1.MaxPorts {
		source.Errors = append(source.Errors, store.ObjectError{File: file,
			Field: "spec.containers", Msg: fmt.Sprintf("have %d named ports, of which the first %d are used: policies cannot name the others, give numbers there",
				n, v1alpha1.MaxPorts)})
	}
	return source, data
}

// maxPolicy is how large a policy may be as JSON, in bytes: as large as a file of a directory.
const maxPolicy = strictyaml.MaxSize

// Keys of a policy's spec, of all kinds: what it is about, and what it lets through or denies.
var (
	chosenBy = []string{"podSelector", "policyTypes", "selector", "targetRef", "targetRefs",
		"action", "subject", "tier", "priority"}
	rulesIn = []string{"ingress", "egress", "rules", "portLevelMtls"}
)

// tooLarge is a policy that is not read, as it would be too much. Left out, it would allow: its
// rules are taken for mistakes instead, with which a policy denies all to what it is about.
func tooLarge(file string, doc map[string]any, size int) *store.Source {
	all, _ := doc["spec"].(map[string]any)
	spec := map[string]any{}
	mistake := map[string]any{"tooLarge": true} // no key that a rule has
	for _, key := range rulesIn {
		if _, there := all[key]; there {
			spec[key] = []any{mistake}
		}
	}
	if len(spec) == 0 {
		spec = mistake
	}
	for _, key := range chosenBy {
		if value, there := all[key]; there {
			spec[key] = value
		}
	}
	data, err := json.Marshal(withSpec(doc, doc["metadata"], spec))
	if err == nil && len(data) > maxPolicy {
		// What it is about is too much, too: it is about all that one of its kind can be.
		meta := maps.Clone(doc["metadata"].(map[string]any))
		delete(meta, "annotations")
		delete(meta, "labels")
		data, err = json.Marshal(withSpec(doc, meta, mistake))
	}
	if err != nil {
		return wrong(file, err.Error())
	}
	source := decode(file, data)
	does := "denies all to what it is about"
	if doc["kind"] == policy.KindPeerAuthentication {
		does = "is STRICT for what it is about"
	}
	source.Errors = wrong(file, fmt.Sprintf("is %d bytes as JSON, and policies of more than %d are not read: it %s until it is split into several",
		size, maxPolicy, does)).Errors
	return source
}

// withSpec is a document's head with another spec.
func withSpec(doc map[string]any, meta any, spec map[string]any) map[string]any {
	return map[string]any{"apiVersion": doc["apiVersion"], "kind": doc["kind"], "metadata": meta,
		"spec": spec}
}

// decode reads a document of one object. Lines are those of the document, which nobody sees.
func decode(file string, data []byte) *store.Source {
	objects, errs := store.Decode(file, data)
	for n := range errs {
		errs[n].Line = 0
	}
	return &store.Source{Objects: objects, Errors: errs}
}

// aboutAll is a mistake that may have taken away any object of a resource.
func aboutAll(r *resource, msg string) *store.Source {
	source := wrong(r.name(), msg)
	source.Directory = true
	return source
}

func wrong(file, msg string) *store.Source {
	return &store.Source{Errors: []store.ObjectError{{File: file, Msg: msg}}}
}
