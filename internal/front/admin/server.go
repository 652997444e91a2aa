package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"
)

// MaxBody is the largest request body, in bytes. A CNI request with its whole
// configuration and previous result is a few KiB.
const MaxBody = 1 << 20

// Server serves a Backend on a unix socket.
type Server struct {
	http     http.Server
	listener net.Listener
	socket   string
	inode    os.FileInfo
	log      *slog.Logger
}

// Listen makes the socket, mode 0600 in a directory of mode 0700, in place of one that
// a dead agent left. The caller holds the instance's lock, so nobody else serves there.
// cni handles /v1/cni/; nil answers 404 there.
func Listen(socket string, backend Backend, cni http.Handler, log *slog.Logger) (*Server, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("create directory of the admin socket: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale admin socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on admin socket: %w", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(socket, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("protect admin socket: %w", err)
	}
	inode, err := os.Stat(socket)
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("find admin socket: %w", err)
	}
	server := &Server{listener: listener, socket: socket, inode: inode, log: log}
	server.http = http.Server{
		Handler:           Handler(backend, cni, log),
		ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return server, nil
}

// Serve answers requests until Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin socket: %w", err)
	}
	return nil
}

// Close lets running requests finish for a short while, then removes the socket.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.http.Close()
	}
	if now, err := os.Stat(s.socket); err == nil && os.SameFile(now, s.inode) {
		return os.Remove(s.socket)
	}
	return nil
}

// Handler is the API without its socket.
func Handler(backend Backend, cni http.Handler, log *slog.Logger) http.Handler {
	api := &api{backend: backend, log: log}
	routes := map[string]route{
		"/v1/healthz":      {method: http.MethodGet, serve: api.healthz},
		"/v1/readyz":       {method: http.MethodGet, serve: api.readyz},
		"/v1/status":       {method: http.MethodGet, serve: answer(backend.Status)},
		"/v1/endpoints":    {method: http.MethodGet, serve: answerList(backend.Endpoints)},
		"/v1/nodes":        {method: http.MethodGet, serve: answerList(backend.Nodes)},
		"/v1/nodes/forget": {method: http.MethodPost, serve: api.forgetNode},
		"/v1/flows": {method: http.MethodGet, serve: api.flows,
			query: []string{"from", "to", "verdict", "reason", "protocol", "last", "follow"}},
		"/v1/flowtable": {method: http.MethodGet, serve: api.flowTable,
			query: []string{"limit"}},
		"/v1/drops":        {method: http.MethodGet, serve: api.drops, query: []string{"all"}},
		"/v1/trace":        {method: http.MethodPost, serve: api.trace},
		"/v1/encrypt":      {method: http.MethodGet, serve: answer(backend.Encrypt)},
		"/v1/keys":         {method: http.MethodGet, serve: api.keys},
		"/v1/keys/rotate":  {method: http.MethodPost, serve: api.rotateKeys},
		"/v1/keys/history": {method: http.MethodGet, serve: api.keyHistory},
		"/v1/policies":     {method: http.MethodGet, serve: answer(backend.Policies)},
		"/v1/policies/get": {method: http.MethodGet, serve: api.policy,
			query: []string{"kind", "name"}},
		"/v1/policies/explain": {method: http.MethodPost, serve: api.explainPolicy},
		"/v1/sysdump":          {method: http.MethodGet, serve: answer(backend.Sysdump)},
	}
	mux := http.NewServeMux()
	for path, route := range routes {
		mux.HandleFunc(path, api.wrap(route))
	}
	if cni != nil {
		mux.Handle("/v1/cni/", http.MaxBytesHandler(cni, MaxBody))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, fmt.Sprintf("there is nothing at %s", r.URL.Path))
	})
	return recoverer(mux, log)
}

// route is one path of the API and what it takes.
type route struct {
	method string
	query  []string
	serve  handler
}

// handler answers a request, or returns why not: a *StatusError, or any error for 500.
type handler func(w http.ResponseWriter, r *http.Request) error

// wrap checks method and query and turns an error into an answer.
func (a *api) wrap(route route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != route.method {
			w.Header().Set("Allow", route.method)
			writeError(w, http.StatusMethodNotAllowed,
				fmt.Sprintf("%s takes %s, not %s", r.URL.Path, route.method, r.Method))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		if err := checkQuery(r, route.query); err != nil {
			writeError(w, http.StatusBadRequest, err.Error())
			return
		}
		err := route.serve(w, r)
		if err == nil {
			return
		}
		var status *StatusError
		if errors.As(err, &status) {
			writeError(w, status.Code, err.Error())
			return
		}
		a.log.Warn("admin request failed", "path", r.URL.Path, "err", err)
		writeError(w, http.StatusInternalServerError, err.Error())
	}
}

// recoverer keeps a bug in one request from ending the agent.
func recoverer(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if cause := recover(); cause != nil {
				log.Error("admin request panicked", "path", r.URL.Path, "cause", cause, "stack",
					string(debug.Stack()))
				writeError(w, http.StatusInternalServerError,
					"the agent failed on this request: its log says where")
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// writeError answers {"error": message}.
func writeError(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]string{"error": message})
}

// writeJSON answers 200 with a value.
func writeJSON(w http.ResponseWriter, value any) error {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// readJSON decodes a request body that must be one object with known fields only.
func readJSON(r *http.Request, into any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return &StatusError{http.StatusBadRequest,
				"bad request body: something follows the JSON object"}
		}
		return nil
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return &StatusError{http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the request body is larger than %d bytes", tooLarge.Limit)}
	case errors.Is(err, io.EOF):
		return &StatusError{http.StatusBadRequest,
			"bad request body: it is empty, a JSON object is expected"}
	}
	return &StatusError{http.StatusBadRequest, fmt.Sprintf("bad request body: %v", err)}
}
