package k8s

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

var listAll = metav1.ListOptions{}

// config is how somebody asks who shows a certificate.
func (s *Server) config(host string, who pair) *rest.Config {
	return &rest.Config{Host: host, QPS: -1, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{CAFile: s.ca.file, CertFile: who.cert,
			KeyFile: who.key}}
}

// Get asks for a path as the administrator.
func (s *Server) Get(path string) ([]byte, error) {
	client, err := rest.HTTPClientFor(s.Admin)
	if err != nil {
		return nil, err
	}
	answer, err := client.Get(s.Admin.Host + path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, answer.Status, body)
	}
	return body, err
}

func (s *Server) client(config *rest.Config) dynamic.Interface {
	s.t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// User is a client that shows a certificate of this name and these groups.
func (s *Server) User(t testing.TB, name string, groups ...string) *rest.Config {
	t.Helper()
	return s.config(s.Admin.Host, s.ca.issue(t, name, groups...))
}

// ServiceAccount is a client with a token of a service account. The token is bound to the object
// that bound says, nil for none.
func (s *Server) ServiceAccount(t testing.TB, namespace, name string,
	bound map[string]any) *rest.Config {
	t.Helper()
	spec := map[string]any{"audiences": []any{}, "expirationSeconds": int64(3600)}
	if bound != nil {
		spec["boundObjectRef"] = bound
	}
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"metadata": map[string]any{"name": name, "namespace": namespace}, "spec": spec}}
	accounts := schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	made, err := s.Dynamic.Resource(accounts).Namespace(namespace).
		Create(context.Background(), request, metav1.CreateOptions{}, "token")
	if err != nil {
		t.Fatalf("token of %s/%s: %v", namespace, name, err)
	}
	token, _, _ := unstructured.NestedString(made.Object, "status", "token")
	out := s.config(s.Admin.Host, pair{})
	out.BearerToken = token
	return out
}

// Client is a client of somebody's.
func (s *Server) Client(who *rest.Config) dynamic.Interface { return s.client(who) }

func (s *Server) etcdClient() *clientv3.Client {
	s.t.Helper()
	files := transport.TLSInfo{TrustedCAFile: s.ca.file, CertFile: s.ca.server.cert,
		KeyFile: s.ca.server.key}
	config, err := files.ClientConfig()
	if err != nil {
		s.t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: s.etcd.Endpoints(), TLS: config,
		Logger: zap.NewNop()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { client.Close() })
	return client
}

// Secrets are the files that controllers share with the server: the key that signs tokens of
// service accounts, and the authority of the server's certificate.
func (s *Server) Secrets() (tokens, ca string) { return s.ca.tokens.key, s.ca.file }
