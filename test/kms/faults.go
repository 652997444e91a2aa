package kms

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"
)

// slowness is how long a slow KMS takes for an answer.
const slowness = 10 * time.Second

// A fault answers a request itself and returns true, or leaves it alone.
type fault func(http.ResponseWriter, *http.Request) bool

// faults is an HTTP handler with a fault before it.
type faults struct {
	next   http.Handler
	mu     sync.Mutex
	fault  fault
	calls  map[string]int
	opName func(*http.Request) string // encrypt, decrypt or ""
}

func newFaults(next http.Handler, opName func(*http.Request) string) *faults {
	return &faults{next: next, calls: map[string]int{}, opName: opName}
}

// set puts a fault before the KMS's operations until undo is called.
func (f *faults) set(x fault) (undo func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = x
	return func() { f.mu.Lock(); defer f.mu.Unlock(); f.fault = nil }
}

func (f *faults) counts() (encrypt, decrypt int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls["encrypt"], f.calls["decrypt"]
}

// ServeHTTP lets the fault answer, or else whatever is behind it.
func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := f.opName(r)
	f.mu.Lock()
	x := f.fault
	f.calls[op]++
	f.mu.Unlock()
	if op == "" || x == nil || !x(w, r) {
		f.next.ServeHTTP(w, r)
	}
}

// slowFault makes the caller wait, as long as it does.
func slowFault(_ http.ResponseWriter, r *http.Request) bool {
	_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client is gone
	select {
	case <-r.Context().Done():
		return true
	case <-time.After(slowness):
		return true
	}
}

// answer is a fault with a fixed answer.
func answer(status int, header map[string]string, body string) fault {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return true
	}
}

// limit lets so many requests through in each second, and refuses the others.
func limit(perSecond int, refuse fault) fault {
	var mu sync.Mutex
	var begin time.Time
	passed := 0
	return func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		if now := time.Now(); now.Sub(begin) >= time.Second {
			begin, passed = now, 0
		}
		passed++
		over := passed > perSecond
		mu.Unlock()
		return over && refuse(w, r)
	}
}

// proxyTo passes requests on to a server.
func proxyTo(t testing.TB, target string) *httputil.ReverseProxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &httputil.ReverseProxy{
		// The Host header stays: it is signed.
		Rewrite:  func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = u.Scheme, u.Host },
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return p
}

// serveHTTP serves a handler at an address of its own, over TLS if config is not nil.
func serveHTTP(t testing.TB, handler http.Handler, config *tls.Config) *switchable {
	t.Helper()
	return newSwitchable(t, func(l net.Listener) func() {
		server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0),
			ReadHeaderTimeout: time.Minute}
		if config != nil {
			l = tls.NewListener(l, config.Clone())
			config.NextProtos = []string{"http/1.1"}
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = server.Serve(l) }()
		return func() { _ = server.Close(); <-done }
	})
}
