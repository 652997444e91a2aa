package kube

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/test/k8s"
)

// apiServer is an API server that a test plays the administrator of. Everything is in a history
// that can be compacted and put back.
type apiServer interface {
	// put writes an object as an administrator does, and makes its namespace.
	put(path, ns, name string, object thing)
	// remove deletes an object.
	remove(path, ns, name string) bool
	// kill and start are those of the process; the history stays.
	kill()
	start()
	// compact forgets the history so far.
	compact()
	// save and restore are those of etcd, below the server, which does not run at a restore. What
	// restore(nil) puts there is another cluster.
	save() any
	restore(saved any)
	// advance raises resource versions as etcd's restore does with --bump-revision; when the server
	// does not run, too.
	advance(by int)
	kubeconfig() string
}

// startServer starts Kubernetes' own kube-apiserver where test/k8s is wanted, else one of the
// tests' own. The tests are the same.
func startServer(t *testing.T) apiServer {
	if os.Getenv(k8s.Wanted) != "" {
		return startReal(t)
	}
	return startFake(t)
}

// server is as much of an API server as a store asks for.
type server struct {
	t       *testing.T
	address string
	http    *http.Server

	mu         sync.Mutex
	steps      []step // from revision 1 on
	compacted  int64  // steps up to here are forgotten
	unserved   map[string]bool
	forbidden  map[string]bool
	largestAsk int
	asked      map[string]int // requests: get, list, exact (a listing of an exact version), watch
	failing    int            // how many listings still fail
}

// step is what one write made of one object.
type step struct {
	what   string // ADDED, MODIFIED or DELETED
	path   string // GROUP/VERSION/RESOURCE
	ns     string
	name   string
	object map[string]any
}

// startFake is for what only this server can be made to do.
func startFake(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, address: "127.0.0.1:0", unserved: map[string]bool{},
		forbidden: map[string]bool{}, asked: map[string]int{}}
	s.start()
	t.Cleanup(s.kill)
	for _, ns := range []string{"kube-system", "weft-system"} {
		s.put("v1/namespaces", "", ns, thing{})
	}
	for _, optional := range []string{"clusternetworkpolicies", "authorizationpolicies",
		"peerauthentications"} {
		s.unserved[optional] = true
	}
	return s
}

// startFaulty is startFake for tables that have a server of either kind.
func startFaulty(t *testing.T) apiServer { return startFake(t) }

// fakeOf is a server that was started with startFaulty.
func fakeOf(s apiServer) *server { return s.(*server) }

func (s *server) start() {
	s.t.Helper()
	var l net.Listener
	var err error
	for range 100 { // the port may be in use by a connection that ends
		if l, err = net.Listen("tcp", s.address); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	must(s.t, err)
	s.address = l.Addr().String()
	s.http = &http.Server{Handler: s}
	go s.http.Serve(l) //nolint:errcheck // ends with kill
}

// kill ends all connections at once.
func (s *server) kill() { s.http.Close() }

// kubeconfig is a file that names the server.
func (s *server) kubeconfig() string {
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	must(s.t, os.WriteFile(path, fmt.Appendf(nil,
		`{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: a, cluster: {server: "http://%s"}}], contexts: [{name: a, context: {cluster: a, user: a, namespace: weft-system}}], users: [{name: a, user: {}}]}`,
		s.address), 0o600))
	return path
}

func (s *server) put(path, ns, name string, object thing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ns != "" && !s.hasNamespace(ns) {
		s.write("v1/namespaces", "", ns, nil)
	}
	s.write(path, ns, name, object)
}

// hasNamespace says whether an object can be made in a namespace, with mu held.
func (s *server) hasNamespace(ns string) bool {
	return s.at("v1/namespaces", int64(len(s.steps)))["/"+ns] != nil
}

// write enters a step, with mu held.
func (s *server) write(path, ns, name string, object map[string]any) map[string]any {
	there := s.at(path, int64(len(s.steps)))[ns+"/"+name]
	revision := len(s.steps) + 1
	raw, err := json.Marshal(object)
	must(s.t, err)
	stored := map[string]any{}
	must(s.t, json.Unmarshal(raw, &stored))
	if stored == nil {
		stored = map[string]any{}
	}
	meta, _ := stored["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	what := "ADDED"
	meta["uid"] = fmt.Sprintf("uid-%d-%d", revision, time.Now().UnixNano())
	if there != nil {
		what, meta["uid"] = "MODIFIED", there["metadata"].(map[string]any)["uid"]
	}
	if path == namespacesPath { // as Kubernetes does
		labels, _ := meta["labels"].(map[string]any)
		if labels == nil {
			labels = map[string]any{}
		}
		labels["kubernetes.io/metadata.name"], meta["labels"] = name, labels
	}
	meta["name"], meta["resourceVersion"] = name, strconv.Itoa(revision)
	if ns != "" {
		meta["namespace"] = ns
	}
	stored["metadata"] = meta
	stored["apiVersion"], stored["kind"] = kindAt(path)
	s.steps = append(s.steps, step{what, path, ns, name, stored})
	return stored
}

// kindAt is what objects at a path are.
func kindAt(path string) (version, kind string) {
	version = path[:strings.LastIndex(path, "/")]
	for _, r := range append(slices.Clone(resources), leases) {
		if r.GroupVersion().String() == version && strings.HasSuffix(path, "/"+r.Resource) {
			return version, r.apiKind
		}
	}
	return version, "Thing"
}

func (s *server) remove(path, ns, name string) (found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := s.at(path, int64(len(s.steps)))[ns+"/"+name]
	if there == nil {
		return false
	}
	raw, err := json.Marshal(there)
	must(s.t, err)
	last := map[string]any{}
	must(s.t, json.Unmarshal(raw, &last))
	last["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(len(s.steps) + 1)
	s.steps = append(s.steps, step{"DELETED", path, ns, name, last})
	return true
}

// at are a resource's objects at a revision, by NAMESPACE/NAME, with mu held.
func (s *server) at(path string, revision int64) map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, step := range s.steps[:revision] {
		switch {
		case step.path != path:
		case step.what == "DELETED":
			delete(out, step.ns+"/"+step.name)
		default:
			out[step.ns+"/"+step.name] = step.object
		}
	}
	return out
}

func (s *server) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = int64(len(s.steps))
}

func (s *server) save() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.steps)
}

func (s *server) restore(saved any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps, _ = saved.([]step)
	s.compacted = 0
	if saved == nil {
		s.write("v1/namespaces", "", "kube-system", nil)
	}
}

func (s *server) advance(by int) {
	for range by {
		s.put("v1/configmaps", "other", "one", nil)
	}
}
