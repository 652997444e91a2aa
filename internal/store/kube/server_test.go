package kube

import (
	"encoding/json"
	"fmt"
	"maps"
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

// apiServer is an API server that a test plays the administrator of. Everything is in a history that
// can be compacted and put back.
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
	failing    int // how many listings still fail
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
		forbidden: map[string]bool{}}
	s.start()
	t.Cleanup(s.kill)
	for _, ns := range []string{"kube-system", "weft-system"} {
		s.put("v1/namespaces", "", ns, thing{})
	}
	for _, optional := range []string{"clusternetworkpolicies", "authorizationpolicies"} {
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

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	path := parts[1] // /api/v1/…
	parts = parts[2:]
	if strings.HasPrefix(r.URL.Path, "/apis/") {
		path, parts = path+"/"+parts[0], parts[1:]
	}
	ns := ""
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" {
		ns, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	path += "/" + resource
	s.mu.Lock()
	unserved, forbidden := s.unserved[resource], s.forbidden[r.Method+" "+resource]
	s.mu.Unlock()
	switch {
	case unserved:
		fail(w, 404, "NotFound", "the server could not find the requested resource")
	case forbidden:
		fail(w, 403, "Forbidden", resource+" is forbidden")
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, path)
	case len(parts) > 1:
		s.one(w, r, path, ns, parts[1])
	case r.Method == http.MethodPost:
		s.create(w, r, path, ns)
	default:
		s.list(w, r, path, ns)
	}
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, status(code, reason, message))
}

func status(code int, reason, message string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
		"reason": reason, "message": message}
}

func answer(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(value) //nolint:errcheck // the client may be gone
}

func (s *server) create(w http.ResponseWriter, r *http.Request, path, ns string) {
	object := map[string]any{}
	must(s.t, json.NewDecoder(r.Body).Decode(&object))
	name := object["metadata"].(map[string]any)["name"].(string)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ns != "" && !s.hasNamespace(ns):
		fail(w, 404, "NotFound", fmt.Sprintf("namespaces %q not found", ns))
		return
	case s.at(path, int64(len(s.steps)))[ns+"/"+name] != nil:
		fail(w, 409, "AlreadyExists", name+" already exists")
		return
	}
	answer(w, 201, s.write(path, ns, name, object))
}

func (s *server) one(w http.ResponseWriter, r *http.Request, path, ns, name string) {
	if r.Method == http.MethodDelete {
		if !s.remove(path, ns, name) {
			fail(w, 404, "NotFound", name+" not found")
			return
		}
		answer(w, 200, status(200, "", ""))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := s.at(path, int64(len(s.steps)))[ns+"/"+name]
	if there == nil {
		fail(w, 404, "NotFound", name+" not found")
		return
	}
	if r.Method == http.MethodGet {
		answer(w, 200, there)
		return
	}
	object := map[string]any{}
	must(s.t, json.NewDecoder(r.Body).Decode(&object))
	if object["metadata"].(map[string]any)["resourceVersion"] !=
		there["metadata"].(map[string]any)["resourceVersion"] {
		fail(w, 409, "Conflict", name+" has changed")
		return
	}
	answer(w, 200, s.write(path, ns, name, object))
}

// list answers in pages. A continuation is REVISION:LAST.
func (s *server) list(w http.ResponseWriter, r *http.Request, path, ns string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing > 0 {
		s.failing--
		fail(w, 500, "InternalError", "etcd is not there yet")
		return
	}
	query := r.URL.Query()
	revision, after := int64(len(s.steps)), ""
	if query.Get("resourceVersionMatch") == "Exact" {
		revision, _ = strconv.ParseInt(query.Get("resourceVersion"), 10, 64)
	}
	if next := query.Get("continue"); next != "" {
		text, last, _ := strings.Cut(next, ":")
		revision, _ = strconv.ParseInt(text, 10, 64)
		after = last
	}
	switch {
	case revision > int64(len(s.steps)):
		fail(w, 500, "InternalError", "etcdserver: mvcc: required revision is a future revision")
		return
	case revision < s.compacted:
		fail(w, 410, "Expired", "The provided continue parameter or version is too old")
		return
	}
	objects := s.at(path, revision)
	limit, _ := strconv.Atoi(query.Get("limit"))
	items, next := []any{}, ""
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		inNS, name, _ := strings.Cut(key, "/")
		selector := query.Get("fieldSelector")
		if key <= after && after != "" || ns != "" && inNS != ns ||
			selector != "" && selector != "metadata.name="+name {
			continue
		}
		if limit > 0 && len(items) == limit {
			break
		}
		item := maps.Clone(objects[key])
		delete(item, "apiVersion") // as Kubernetes does for its own
		delete(item, "kind")
		items = append(items, item)
		next = fmt.Sprintf("%d:%s", revision, key)
	}
	if limit == 0 || len(items) < limit {
		next = ""
	}
	s.largestAsk = max(s.largestAsk, len(items))
	version, kind := kindAt(path)
	answer(w, 200, map[string]any{"apiVersion": version, "kind": kind + "List", "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.FormatInt(revision, 10),
			"continue": next}})
}

// watch streams steps after a revision, and bookmarks.
func (s *server) watch(w http.ResponseWriter, r *http.Request, path string) {
	at, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	w.Header().Set("Content-Type", "application/json")
	encoder, flusher := json.NewEncoder(w), w.(http.Flusher)
	send := func(what string, object any) error {
		defer flusher.Flush()
		return encoder.Encode(map[string]any{"type": what, "object": object})
	}
	flusher.Flush()
	for r.Context().Err() == nil {
		s.mu.Lock()
		steps, compacted := s.steps, s.compacted
		s.mu.Unlock()
		if at < compacted {
			send("ERROR", status(410, "Expired", "too old resource version")) //nolint:errcheck
			return
		}
		told := false
		for n := at; n < int64(len(steps)); n++ {
			if steps[n].path != path {
				continue
			}
			told = true
			if send(steps[n].what, steps[n].object) != nil {
				return
			}
		}
		if len(steps) > int(at) && !told {
			send("BOOKMARK", map[string]any{"apiVersion": "v1", "kind": "X", //nolint:errcheck
				"metadata": map[string]any{"resourceVersion": strconv.Itoa(len(steps))}})
		}
		at = max(at, int64(len(steps)))
		time.Sleep(2 * time.Millisecond)
	}
}
