package kube

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"weft.dev/weft/test/k8s"
)

// real is Kubernetes' own API server, with packaging/kubernetes applied. A store reaches it through
// a front of the test's, so that it is away for the store and not for the administrator.
type real struct {
	*k8s.Server
	t       *testing.T
	address string // of the front
	front   net.Listener
	mu      sync.Mutex
	conns   []net.Conn
}

func startReal(t *testing.T) apiServer {
	t.Helper()
	s := &real{Server: k8s.Start(t), t: t, address: "127.0.0.1:0"}
	s.Install()
	s.listen()
	t.Cleanup(s.kill)
	return s
}

func (s *real) listen() {
	s.t.Helper()
	l, err := net.Listen("tcp", s.address)
	must(s.t, err)
	s.front, s.address = l, l.Addr().String()
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // killed
			}
			server, err := net.Dial("tcp", strings.TrimPrefix(s.Admin.Host, "https://"))
			if err != nil {
				client.Close()
				continue
			}
			s.mu.Lock()
			s.conns = append(s.conns, client, server)
			s.mu.Unlock()
			go forward(client, server)
			go forward(server, client)
		}
	}()
}

// forward copies one direction until either end is closed.
func forward(to, from net.Conn) {
	io.Copy(to, from) //nolint:errcheck // it ends with kill
	to.Close()
	from.Close()
}

func (s *real) kill() {
	s.front.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
}

// start has the server begin anew, without what it held in memory.
func (s *real) start() {
	s.t.Helper()
	s.Kill()
	s.Start()
	s.listen()
}

func (s *real) compact()       { s.Compact() }
func (s *real) save() any      { return s.Save() }
func (s *real) advance(by int) { s.Advance(by) }

func (s *real) restore(saved any) {
	s.t.Helper()
	text, _ := saved.(string)
	s.Kill()
	s.Restore(text)
	s.Start()
}

// kubeconfig is an administrator's: what an agent may do is test/k8s' to judge.
func (s *real) kubeconfig() string {
	who := rest.CopyConfig(s.Admin)
	who.Host = "https://" + s.address
	return s.Kubeconfig(who, "weft-system")
}

func gvrOf(path string) schema.GroupVersionResource {
	for _, r := range resources {
		if r.GroupVersion().String()+"/"+r.Resource == path {
			return r.GroupVersionResource
		}
	}
	return core("configmaps")
}

// put writes an object with what this server asks for and the tests' own does not. A node's status
// is a resource of its own.
func (s *real) put(path, ns, name string, what thing) {
	s.t.Helper()
	data, err := json.Marshal(what)
	must(s.t, err)
	o := &object{}
	must(s.t, json.Unmarshal(data, &o.Object))
	if o.Object == nil {
		o.Object = thing{}
	}
	version, kind := kindAt(path)
	if kind == "Thing" {
		kind = "ConfigMap"
	}
	o.SetAPIVersion(version)
	o.SetKind(kind)
	o.SetName(name)
	o.SetNamespace(ns)
	o.SetManagedFields(nil)
	if ns != "" {
		s.ensure("namespaces", "", ns)
	}
	if kind == "Pod" {
		s.complete(o)
	}
	client := s.Dynamic.Resource(gvrOf(path)).Namespace(ns)
	there, err := client.Get(s.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(s.t.Context(), o, metav1.CreateOptions{})
		must(s.t, err)
		return
	}
	must(s.t, err)
	o.SetResourceVersion(there.GetResourceVersion())
	if kind == "Node" {
		_, err = client.UpdateStatus(s.t.Context(), o, metav1.UpdateOptions{})
	} else {
		_, err = client.Update(s.t.Context(), o, metav1.UpdateOptions{})
	}
	must(s.t, err)
}

// ensure makes what controllers of a cluster would.
func (s *real) ensure(resource, ns, name string) {
	s.t.Helper()
	o := &object{Object: thing{"apiVersion": "v1", "kind": map[string]string{
		"namespaces": "Namespace", "serviceaccounts": "ServiceAccount"}[resource]}}
	o.SetName(name)
	_, err := s.Dynamic.Resource(core(resource)).Namespace(ns).Create(s.t.Context(), o,
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.t.Fatal(err)
	}
}

// complete gives a pod containers with images, and a service account that exists.
func (s *real) complete(o *object) {
	spec, _ := o.Object["spec"].(thing)
	if spec == nil {
		spec = thing{}
		o.Object["spec"] = spec
	}
	if spec["containers"] == nil {
		spec["containers"] = []any{thing{}}
	}
	for _, list := range []string{"containers", "initContainers"} {
		containers, _ := spec[list].([]any)
		for n, item := range containers {
			container := item.(thing)
			container["image"] = "example.test/image"
			container["name"] = list[:4] + string(rune('a'+n))
		}
	}
	account, _ := spec["serviceAccountName"].(string)
	if account == "" {
		account = "default"
	}
	s.ensure("serviceaccounts", o.GetNamespace(), account)
}

func (s *real) remove(path, ns, name string) bool {
	s.t.Helper()
	now := int64(0)
	err := s.Dynamic.Resource(gvrOf(path)).Namespace(ns).Delete(s.t.Context(), name,
		metav1.DeleteOptions{GracePeriodSeconds: &now})
	if apierrors.IsNotFound(err) {
		return false
	}
	must(s.t, err)
	return true
}
