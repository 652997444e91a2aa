package k8s

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

type thing = map[string]any

func own(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "weft.dev", Version: "v1alpha1", Resource: resource}
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func object(kind, name string, rest thing) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: thing{"apiVersion": "weft.dev/v1alpha1", "kind": kind}}
	for key, value := range rest {
		o.Object[key] = value
	}
	o.SetName(name)
	return o
}

func endpoint(pod, node string) *unstructured.Unstructured {
	return object("Endpoint", pod+"."+node, thing{"spec": thing{"nodeName": node,
		"addresses": []any{"10.1.1.7"}}})
}

// TestDefinitions: the API server takes the manifests as they are, twice, and its schema refuses
// what no agent can use.
func TestDefinitions(t *testing.T) {
	s := Start(t)
	s.Install()
	s.Install()
	endpointOf := func(spec thing) *unstructured.Unstructured {
		o := endpoint("web", "a")
		for key, value := range spec {
			o.Object["spec"].(thing)[key] = value
		}
		return o
	}
	for name, row := range map[string]struct {
		resource string
		object   *unstructured.Unstructured
		want     string // of the error; "" for none
	}{
		"an endpoint":        {"endpoints", endpoint("db", "a"), ""},
		"no spec":            {"endpoints", object("Endpoint", "web.a", nil), "spec: Required value"},
		"no addresses":       {"endpoints", endpointOf(thing{"addresses": nil}), "spec.addresses"},
		"another's name":     {"endpoints", endpointOf(thing{"nodeName": "b"}), "is not POD.NODE"},
		"a port of 70000":    {"endpoints", endpointOf(thing{"ports": []any{thing{"name": "x", "port": int64(70000)}}}), "spec.ports[0].port"},
		"an address of 50 B": {"endpoints", endpointOf(thing{"addresses": []any{strings.Repeat("1", 50)}}), "spec.addresses[0]"},
		"a number as text":   {"endpoints", endpointOf(thing{"mac": int64(7)}), "spec.mac"},
		"an identity": {"identities", object("Identity", "300", thing{"spec": thing{
			"spiffeID": "spiffe://weft.local/ns/shop/sa/web"}}), ""},
		"an identity without": {"identities", object("Identity", "301", nil), "spec"},
		"an epoch without":    {"epochs", object("Epoch", "epoch-1", thing{"spec": thing{}}), "spec."},
		"a policy": {"encryptionpolicies", object("EncryptionPolicy", "plain", thing{
			"spec": thing{"selector": thing{}}}), ""},
		"a policy of the cluster": {"clusterencryptionpolicies", object("ClusterEncryptionPolicy",
			"plain", thing{"spec": thing{"cidrs": []any{"10.9.0.0/16"}}}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			client := s.Dynamic.Resource(own(row.resource)).Namespace(namespaceOf(row.resource))
			_, err := client.Create(t.Context(), row.object, metav1.CreateOptions{})
			if (err == nil) != (row.want == "") || err != nil &&
				!strings.Contains(err.Error(), row.want) {
				t.Errorf("%v, want %q", err, row.want)
			}
		})
	}
}

func namespaceOf(resource string) string {
	if resource == "endpoints" || resource == "encryptionpolicies" {
		return "default"
	}
	return ""
}

// TestLeastPrivilege asks the API server what the service account of agents may do.
func TestLeastPrivilege(t *testing.T) {
	s := Start(t)
	s.Install()
	client := s.Client(s.ServiceAccount(t, "weft-system", "weft-agent", nil))
	const can, cannot = true, false
	for _, row := range []struct {
		group, resource, verbs, namespace, name string
		want                                    bool
	}{
		{"", "nodes pods namespaces", "get list watch", "", "", can},
		{"", "nodes pods namespaces", "create update patch delete deletecollection", "", "", cannot},
		{"", "nodes/status pods/status pods/exec nodes/proxy", "get update patch create", "", "", cannot},
		{"", "secrets configmaps serviceaccounts services", "get list watch create", "", "", cannot},
		{"", "serviceaccounts/token", "create", "weft-system", "weft-agent", cannot},
		{"networking.k8s.io", "networkpolicies", "get list watch", "", "", can},
		{"networking.k8s.io", "networkpolicies", "create update patch delete", "", "", cannot},
		{"policy.networking.k8s.io", "clusternetworkpolicies adminnetworkpolicies baselineadminnetworkpolicies", "get list watch", "", "", can},
		{"policy.networking.k8s.io", "clusternetworkpolicies adminnetworkpolicies baselineadminnetworkpolicies", "create update delete", "", "", cannot},
		{"security.istio.io", "authorizationpolicies peerauthentications", "get list watch", "", "", can},
		{"security.istio.io", "authorizationpolicies peerauthentications", "create update delete", "", "", cannot},
		{"weft.dev", "encryptionpolicies clusterencryptionpolicies", "get list watch", "", "", can},
		{"weft.dev", "encryptionpolicies clusterencryptionpolicies", "create update patch delete", "", "", cannot},
		{"weft.dev", "endpoints epochs", "get list watch create update delete", "", "", can},
		{"weft.dev", "endpoints epochs", "patch deletecollection", "", "", cannot},
		{"weft.dev", "identities", "get list watch create", "", "", can},
		{"weft.dev", "identities", "update patch delete deletecollection", "", "", cannot},
		{"coordination.k8s.io", "leases", "get update", "weft-system", "weft-epochs", can},
		{"coordination.k8s.io", "leases", "create", "weft-system", "", can},
		{"coordination.k8s.io", "leases", "get update delete", "weft-system", "other", cannot},
		{"coordination.k8s.io", "leases", "get update create", "kube-system", "weft-epochs", cannot},
		{"rbac.authorization.k8s.io", "clusterroles clusterrolebindings", "get list create update bind escalate", "", "", cannot},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies validatingadmissionpolicybindings", "get update delete", "", "", cannot},
		{"apiextensions.k8s.io", "customresourcedefinitions", "get update delete", "", "", cannot},
	} {
		for _, resource := range strings.Fields(row.resource) {
			for _, verb := range strings.Fields(row.verbs) {
				got := may(t, client, row.group, resource, verb, row.namespace, row.name)
				if got != row.want {
					t.Errorf("%s %s.%s %s/%s: %v, want %v", verb, resource, row.group,
						row.namespace, row.name, got, row.want)
				}
			}
		}
	}
}

// may asks whether a client may do something.
func may(t *testing.T, client dynamic.Interface, group, resource, verb, ns, name string) bool {
	t.Helper()
	resource, sub, _ := strings.Cut(resource, "/")
	review := &unstructured.Unstructured{Object: thing{"apiVersion": "authorization.k8s.io/v1",
		"kind": "SelfSubjectAccessReview", "spec": thing{"resourceAttributes": thing{
			"group": group, "resource": resource, "subresource": sub, "verb": verb,
			"namespace": ns, "name": name}}}}
	reviews := schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1",
		Resource: "selfsubjectaccessreviews"}
	answer, err := client.Resource(reviews).Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	allowed, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed")
	return allowed
}

// bind gives somebody the role of agents, as an administrator might.
func (s *Server) bind(t *testing.T, name string, subject thing) {
	t.Helper()
	subject["apiGroup"] = "rbac.authorization.k8s.io"
	o := &unstructured.Unstructured{Object: thing{"apiVersion": "rbac.authorization.k8s.io/v1",
		"kind": "ClusterRoleBinding", "metadata": thing{"name": name},
		"roleRef": thing{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
			"name": "weft-agent"},
		"subjects": []any{subject}}}
	if err := s.Apply(o); err != nil {
		t.Fatal(err)
	}
}

// agentOn is a client with a token of the agent's pod on a node.
func (s *Server) agentOn(t *testing.T, node string) *rest.Config {
	t.Helper()
	pod := &unstructured.Unstructured{Object: thing{"apiVersion": "v1", "kind": "Pod",
		"spec": thing{"nodeName": node, "serviceAccountName": "weft-agent",
			"containers": []any{thing{"name": "agent", "image": "example.test/agent"}}}}}
	pod.SetName("agent-" + node)
	made, err := s.Dynamic.Resource(core("pods")).Namespace("weft-system").
		Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.ServiceAccount(t, "weft-system", "weft-agent", thing{"kind": "Pod",
		"apiVersion": "v1", "name": made.GetName(), "uid": string(made.GetUID())})
}

// nodeBound is a client with a token of agents' service account that is bound to a Node.
func (s *Server) nodeBound(t *testing.T, name string) *rest.Config {
	t.Helper()
	node := &unstructured.Unstructured{Object: thing{"apiVersion": "v1", "kind": "Node"}}
	node.SetName(name)
	made, err := s.Dynamic.Resource(core("nodes")).Create(t.Context(), node,
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.ServiceAccount(t, "weft-system", "weft-agent", thing{"kind": "Node",
		"apiVersion": "v1", "name": name, "uid": string(made.GetUID())})
}

// TestOwnEndpointsOnly: who is bound to a node writes the endpoints of that one, and who is bound
// to none writes none, by whatever way the role came to them. Administrators may repair, and the
// controllers of Kubernetes delete.
func TestOwnEndpointsOnly(t *testing.T) {
	s := Start(t)
	s.Install()
	s.bind(t, "by-certificate", thing{"kind": "User", "name": "agent-a"})
	s.bind(t, "by-group", thing{"kind": "Group", "name": "system:nodes"})
	s.bind(t, "repair", thing{"kind": "Group", "name": "weft-administrators"})
	s.bind(t, "controller", thing{"kind": "User",
		"name": "system:serviceaccount:kube-system:namespace-controller"})
	const noNode, others = "names no node", "endpoints of its own node only"
	s.awaitPolicy(t)
	for name, row := range map[string]struct {
		who *rest.Config
		// What each refusal says, "" for none.
		own, creates, deletes, changes, deletesOwn string
	}{
		"an agent's pod":             {s.agentOn(t, "a"), "", others, others, others, ""},
		"an agent bound to its Node": {s.nodeBound(t, "a"), "", others, others, others, ""},
		"an agent bound to nothing": {s.ServiceAccount(t, "weft-system", "weft-agent", nil),
			noNode, noNode, noNode, noNode, noNode},
		"a certificate": {s.User(t, "agent-a"), noNode, noNode, noNode, noNode, noNode},
		"a kubelet's certificate": {s.User(t, "system:node:a", "system:nodes"), noNode, noNode,
			noNode, noNode, noNode},
		"an administrator": {s.Admin, "", "", "", "", ""},
		"an administrator of Weft's": {s.User(t, "repair", "weft-administrators"), "", "", "", "",
			""},
		"a controller": {s.User(t, "system:serviceaccount:kube-system:namespace-controller"),
			noNode, noNode, "", noNode, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, node := range []string{"a", "b"} {
				s.reset(t, endpoint("there", node))
			}
			client := s.Client(row.who).Resource(own("endpoints")).Namespace("default")
			create := func(node string) error {
				s.reset(t, endpoint("made", node))
				s.drop(t, "made."+node)
				_, err := client.Create(t.Context(), endpoint("made", node),
					metav1.CreateOptions{})
				return err
			}
			refusal(t, "create its own", create("a"), row.own)
			refusal(t, "create another's", create("b"), row.creates)
			change := func(node string) error {
				o, err := s.Dynamic.Resource(own("endpoints")).Namespace("default").
					Get(t.Context(), "there."+node, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				o.Object["spec"].(thing)["mac"] = fmt.Sprint("02:00:00:00:00:0", len(name)%10)
				_, err = client.Update(t.Context(), o, metav1.UpdateOptions{})
				return err
			}
			refusal(t, "change its own", change("a"), row.own)
			refusal(t, "change another's", change("b"), row.changes)
			refusal(t, "delete another's", client.Delete(t.Context(), "there.b",
				metav1.DeleteOptions{}), row.deletes)
			refusal(t, "delete its own", client.Delete(t.Context(), "there.a",
				metav1.DeleteOptions{}), row.deletesOwn)
		})
	}
}

func refusal(t *testing.T, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// reset makes an endpoint be there, as an administrator.
func (s *Server) reset(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	o.SetNamespace("default")
	if err := s.Apply(o); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) drop(t *testing.T, name string) {
	t.Helper()
	if err := s.Dynamic.Resource(own("endpoints")).Namespace("default").Delete(t.Context(), name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitPolicy waits until admission has heard of the policy: it is told of it by a watch.
func (s *Server) awaitPolicy(t *testing.T) {
	t.Helper()
	client := s.Client(s.User(t, "agent-a")).Resource(own("endpoints")).Namespace("default")
	for {
		_, err := client.Create(context.Background(), endpoint("first", "a"),
			metav1.CreateOptions{DryRun: []string{"All"}})
		if err != nil && strings.Contains(err.Error(), "names no node") {
			return
		}
	}
}
