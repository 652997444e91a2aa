// Package k8s runs a real kube-apiserver for tests, on real etcd (test/etcd): with RBAC, tokens of
// service accounts and its default admission, to be killed, compacted and put back to an older
// state. There are no controllers in it: nobody makes service accounts or collects garbage.
// test/k8s/cluster has them, and nodes.
package k8s

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"weft.dev/weft/test/etcd"
)

// Wanted is the environment variable that has tests use a real kube-apiserver.
const Wanted = "WEFT_TEST_K8S"

// Server is a kube-apiserver of a test, and its etcd. What etcd holds outlives both processes.
type Server struct {
	// Admin may do everything.
	Admin *rest.Config
	// Dynamic is a client of the administrator's.
	Dynamic dynamic.Interface

	t     testing.TB
	ca    *authority
	etcd  *etcd.Cluster
	args  []string
	cmd   *exec.Cmd
	log   *bytes.Buffer
	ended chan struct{} // closed when the process is gone; the log is whole then
}

// started bounds how long a kube-apiserver takes until it is ready, on a machine that does much
// else.
const started = 5 * time.Minute

// Options are what a server needs that is not the default.
type Options struct {
	// Address is where nodes reach it, at Port; invalid is the loopback, at a port that is free.
	Address netip.Addr
	// Args are further flags; they win over the server's own.
	Args []string
}

// Port is the one of a server with an address.
const Port = 6443

// Start runs a server on the loopback until the test ends. It skips the test where none is wanted.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, Options{})
}

// StartWith is Start with options.
func StartWith(t testing.TB, opt Options) *Server {
	t.Helper()
	if os.Getenv(Wanted) == "" {
		t.Skip("needs kube-apiserver, which takes many minutes to build from its module: make test-k8s")
	}
	binary := Binary(t, "kube-apiserver")
	dir := t.TempDir()
	address, advertise := etcd.FreeAddress(t), "192.0.2.1"
	host, port, _ := strings.Cut(address, ":")
	if opt.Address.IsValid() {
		host, port, advertise = opt.Address.String(), fmt.Sprint(Port), opt.Address.String()
		address = net.JoinHostPort(host, port)
	}
	s := &Server{t: t, ca: newAuthority(t, dir, net.ParseIP(host)), log: &bytes.Buffer{}}
	s.etcd = etcd.Start(t, etcd.Options{CA: s.ca.file, Cert: s.ca.server.cert, Key: s.ca.server.key})
	s.args = []string{binary,
		"--etcd-servers", s.etcd.Members[0].Endpoint, "--etcd-cafile", s.ca.file,
		"--etcd-certfile", s.ca.server.cert, "--etcd-keyfile", s.ca.server.key,
		"--etcd-compaction-interval", "0", // tests say when
		"--bind-address", host, "--secure-port", port,
		// It must not be of the loopback; nobody is told it, as nothing writes endpoints.
		"--advertise-address", advertise, "--endpoint-reconciler-type", "none",
		"--tls-cert-file", s.ca.server.cert, "--tls-private-key-file", s.ca.server.key,
		"--client-ca-file", s.ca.file, "--authorization-mode", "Node,RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", s.ca.tokens.key,
		"--service-account-signing-key-file", s.ca.tokens.key,
		"--service-cluster-ip-range", "10.96.0.0/24",
	}
	s.args = append(s.args, opt.Args...)
	s.Admin = s.config("https://"+address, s.ca.issue(t, "admin", "system:masters"))
	s.Dynamic = s.client(s.Admin)
	s.Start()
	return s
}

// Start runs the process, which does not run, and waits until it is ready.
func (s *Server) Start() {
	s.t.Helper()
	cmd, ended := exec.Command(s.args[0], s.args[1:]...), make(chan struct{})
	s.log.Reset()
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.cmd, s.ended = cmd, ended
	go func() { cmd.Wait(); close(ended) }() //nolint:errcheck // the log says why
	s.t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may be dead
		<-ended
	})
	for deadline := time.Now().Add(started); time.Now().Before(deadline); {
		if s.ready() {
			return
		}
		select {
		case <-ended:
			s.t.Fatalf("kube-apiserver has ended: %s", s.log)
		case <-time.After(100 * time.Millisecond):
		}
	}
	s.Kill()
	s.t.Fatalf("kube-apiserver is not ready: %s", s.log)
}

// ready says whether all of it answers, namespaces that every cluster has included.
func (s *Server) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := s.Get("/readyz"); err != nil {
		return false
	}
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	list, err := s.Dynamic.Resource(namespaces).List(ctx, listAll)
	return err == nil && len(list.Items) >= 4
}

// Kill ends the process at once.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatalf("kill kube-apiserver: %v", err)
	}
	<-s.ended
}

// Compact has etcd forget all that was before now.
func (s *Server) Compact() {
	s.t.Helper()
	client := s.etcdClient()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	now, err := client.Get(ctx, "/")
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := client.Compact(ctx, now.Header.Revision); err != nil {
		s.t.Fatalf("compact etcd: %v", err)
	}
}

// Save copies what etcd holds. The server runs, and waits for etcd meanwhile.
func (s *Server) Save() (saved string) {
	s.t.Helper()
	m := s.etcd.Members[0]
	m.Kill()
	saved = m.Save()
	m.Start()
	s.awaitEtcd()
	for deadline := time.Now().Add(started); !s.ready(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("kube-apiserver does not come back after etcd: %s", s.log)
		}
	}
	return saved
}

// Restore puts what was saved in place of what etcd holds, "" for nothing. The server does not run
// meanwhile.
func (s *Server) Restore(saved string) {
	s.t.Helper()
	m := s.etcd.Members[0]
	m.Kill()
	if saved == "" {
		if err := os.RemoveAll(m.Dir); err != nil {
			s.t.Fatal(err)
		}
	} else {
		m.Restore(saved)
	}
	m.Start()
	s.awaitEtcd()
}

// Advance raises etcd's revision by writes that no resource is about, as `etcdutl snapshot restore
// --bump-revision` does.
func (s *Server) Advance(by int) {
	s.t.Helper()
	client := s.etcdClient()
	for range by {
		if _, err := client.Put(context.Background(), "/test/advance", "x"); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *Server) awaitEtcd() {
	s.t.Helper()
	client := s.etcdClient()
	for range 600 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := client.Get(ctx, "ready")
		cancel()
		if err == nil {
			return
		}
	}
	s.t.Fatal("etcd does not answer")
}

// Kubeconfig is a file that names the server and who asks; namespace is that of its context.
func (s *Server) Kubeconfig(who *rest.Config, namespace string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	user := fmt.Sprintf("token: %q", who.BearerToken)
	if who.BearerToken == "" {
		user = fmt.Sprintf("client-certificate: %q, client-key: %q", who.CertFile, who.KeyFile)
	}
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: %q, certificate-authority: %q}}], contexts: [{name: a, context: {cluster: a, user: a, namespace: %q}}], users: [{name: a, user: {%s}}]}",
		who.Host, who.CAFile, namespace, user)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}
