package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

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
	s.asked[asks(r, len(parts) > 1)]++
	unserved, forbidden := s.unserved[resource] || s.unserved[path], s.forbidden[r.Method+" "+resource]
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

// asks is what a request is, as in server.asked.
func asks(r *http.Request, one bool) string {
	query := r.URL.Query()
	switch {
	case query.Get("watch") != "":
		return "watch"
	case query.Get("resourceVersionMatch") == "Exact":
		return "exact"
	case one || r.Method != http.MethodGet:
		return strings.ToLower(r.Method)
	}
	return "list"
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
