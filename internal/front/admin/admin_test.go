package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/policy"
)

type fake struct {
	ready bool
	hub   *flows.Hub
	panic bool
}

func (f *fake) Ready() Readiness { return Readiness{Ready: f.ready, Waiting: "the test"} }
func (f *fake) Status(context.Context) (*Status, error) {
	return &Status{Node: "a", Ready: f.ready, PID: os.Getpid()}, nil
}
func (f *fake) Endpoints(context.Context) ([]Endpoint, error) { return nil, nil }
func (f *fake) Nodes(context.Context) ([]Node, error) {
	return nil,
		errors.New("store is broken")
}
func (f *fake) ForgetNode(_ context.Context, what string) ([]NoNode, error) {
	if what == "nobody" {
		return nil, &StatusError{http.StatusNotFound, "nobody was not lost"}
	}
	return []NoNode{{Node: what}}, nil
}
func (f *fake) FlowTable(_ context.Context, limit int) ([]TableFlow, error) {
	if f.panic {
		panic("bug")
	}
	return make([]TableFlow, limit), nil
}
func (f *fake) Drops(_ context.Context, all bool) ([]Drop, error) {
	return []Drop{{Reason: map[bool]string{true: "all", false: "some"}[all]}}, nil
}
func (f *fake) Trace(_ context.Context, r TraceRequest) (*TraceResult, error) {
	if r.From == "nobody" {
		return nil, &StatusError{http.StatusBadRequest, "there is no endpoint nobody"}
	}
	return &TraceResult{From: r.From, Trace: datapath.Trace{Verdict: "drop", Reason: "no_route"}},
		nil
}
func (f *fake) Encrypt(context.Context) (*Encryption, error) {
	return &Encryption{Mode: "strict", Peers: []EncryptPeer{{Node: "b", State: "up"}}}, nil
}
func (f *fake) Policies(context.Context) (*Policies, error) { return &Policies{Node: "a"}, nil }
func (f *fake) Policy(_ context.Context, kind, key string) (*PolicyDetail, error) {
	return &PolicyDetail{Node: kind + " " + key}, nil
}
func (f *fake) ExplainPolicy(_ context.Context, r PolicyRequest) (*PolicyExplanation, error) {
	return &PolicyExplanation{From: r.From, Answer: policy.Answer{Verdict: policy.Allow}}, nil
}
func (f *fake) Sysdump(context.Context) (Sysdump, error) { return Sysdump{"x": []byte("1")}, nil }
func (f *fake) Flows(ctx context.Context, query FlowQuery, send func(flows.Flow) error) error {
	past, follower := f.hub.Follow(query.Last, nil, 8)
	defer follower.Close()
	for _, flow := range past {
		if err := send(flow); err != nil {
			return err
		}
	}
	for query.Follow {
		select {
		case <-ctx.Done():
			return nil
		case flow := <-follower.C():
			if err := send(flow); err != nil {
				return err
			}
		}
	}
	return nil
}

var quiet = slog.New(slog.DiscardHandler)

func TestRefusals(t *testing.T) {
	cni := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	handler := Handler(&fake{hub: flows.NewHub(4), panic: true}, cni, quiet)
	large := `{"from":"` + strings.Repeat("x", MaxBody) + `"}`
	for _, test := range []struct {
		name, method, path, body string
		code                     int
		text                     string
	}{
		{"bad JSON", "POST", "/v1/trace", "{nope", 400, "bad request body: invalid character"},
		{"empty", "POST", "/v1/trace", "", 400, "it is empty"},
		{"array", "POST", "/v1/trace", "[]", 400, "bad request body"},
		{"unknown field", "POST", "/v1/trace", `{"frm":"a"}`, 400, `unknown field \"frm\"`},
		{"two objects", "POST", "/v1/trace", `{"from":"a","to":"b"}{}`, 400, "something follows"},
		{"missing field", "POST", "/v1/trace", `{"from":"a"}`, 400, `field \"to\" is missing`},
		{"wrong type", "POST", "/v1/trace", `{"from":1}`, 400, "bad request body"},
		{"oversized", "POST", "/v1/trace", large, 413, "larger than 1048576 bytes"},
		{"oversized for cni", "POST", "/v1/cni/add", large, 418, ""},
		{"refused by backend", "POST", "/v1/trace", `{"from":"nobody","to":"b"}`, 400,
			"no endpoint nobody"},
		{"wrong method", "GET", "/v1/trace", "", 405, "takes POST, not GET"},
		{"wrong method", "DELETE", "/v1/status", "", 405, "takes GET, not DELETE"},
		{"no policy named", "GET", "/v1/policies/get", "", 400, "parameter name is missing"},
		{"no protocol", "POST", "/v1/policies/explain", `{"from":"a","to":"b"}`, 400,
			`field \"protocol\" is missing`},
		{"unknown path", "GET", "/v1/statsu", "", 404, "nothing at /v1/statsu"},
		{"root", "GET", "/", "", 404, "nothing at /"},
		{"unknown query", "GET", "/v1/flows?form=x", "", 400, `unknown query parameter \"form\"`},
		{"query where none is", "GET", "/v1/status?x=1", "", 400, "takes no query parameters"},
		{"bad number", "GET", "/v1/flows?last=many", "", 400, "a whole number"},
		{"bad flag", "GET", "/v1/flows?follow=maybe", "", 400, "true or false"},
		{"bad filter", "GET", "/v1/flows?from=a+b", "", 400, "from:"},
		{"bad verdict", "GET", "/v1/flows?verdict=x", "", 400, "unknown verdict"},
		{"backend fails", "GET", "/v1/nodes", "", 500, "store is broken"},
		{"panic", "GET", "/v1/flowtable", "", 500, "its log says where"},
		{"not ready", "GET", "/v1/readyz", "", 503, `"waiting":"the test"`},
		{"list is never null", "GET", "/v1/endpoints", "", 200, "[]"},
		{"health", "GET", "/v1/healthz", "", 200, "true"},
	} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder,
			httptest.NewRequest(test.method, test.path, strings.NewReader(test.body)))
		if recorder.Code != test.code || !strings.Contains(recorder.Body.String(), test.text) {
			t.Errorf("%s: %d %.200s", test.name, recorder.Code, recorder.Body)
		}
		if recorder.Code != 418 && !json.Valid(recorder.Body.Bytes()) {
			t.Errorf("%s: not JSON: %.200s", test.name, recorder.Body)
		}
	}
}

func serve(t *testing.T, socket string, backend Backend) *Server {
	t.Helper()
	server, err := Listen(socket, backend, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve()
	t.Cleanup(func() { server.Close() })
	return server
}

func TestClient(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", SocketName)
	backend := &fake{ready: true, hub: flows.NewHub(4)}
	server := serve(t, socket, backend)
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v %v", info.Mode(), err)
	}
	if parent, _ := os.Stat(filepath.Dir(socket)); parent.Mode().Perm() != 0o700 {
		t.Errorf("directory %v", parent.Mode())
	}
	ctx := context.Background()
	client := NewClient(socket)
	if status, err := client.Status(ctx); err != nil || status.Node != "a" {
		t.Errorf("status %v %v", status, err)
	}
	if ready, err := client.Ready(ctx); err != nil || !ready.Ready {
		t.Errorf("ready %v %v", ready, err)
	}
	if endpoints, err := client.Endpoints(ctx); err != nil || len(endpoints) != 0 {
		t.Errorf("endpoints %v %v", endpoints, err)
	}
	if table, err := client.FlowTable(ctx, 3); err != nil || len(table) != 3 {
		t.Errorf("flow table %v %v", table, err)
	}
	if drops, err := client.Drops(ctx, true); err != nil || drops[0].Reason != "all" {
		t.Errorf("drops %v %v", drops, err)
	}
	if trace, err := client.Trace(ctx, TraceRequest{From: "a", To: "b"}); err != nil ||
		!trace.Dropped() {
		t.Errorf("trace %v %v", trace, err)
	}
	var refused *StatusError
	if _, err := client.Nodes(ctx); !errors.As(err, &refused) || refused.Code != 500 ||
		err.Error() != "store is broken" {
		t.Errorf("nodes %v", err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

func TestFlowStream(t *testing.T) {
	socket := filepath.Join(t.TempDir(), SocketName)
	backend := &fake{hub: flows.NewHub(4)}
	backend.hub.Publish(flows.Flow{Protocol: "tcp"})
	server := serve(t, socket, backend)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := NewClient(socket)
	count := 0
	if err := client.Flows(ctx, FlowQuery{},
		func(flows.Flow) error { count++; return nil }); err != nil || count != 1 {
		t.Errorf("past: %d %v", count, err)
	}
	got := make(chan string, 8)
	ended := make(chan error, 1)
	go func() {
		ended <- client.Flows(ctx, FlowQuery{Follow: true, Last: -1}, func(flow flows.Flow) error {
			got <- flow.Protocol
			return nil
		})
	}()
	for backend.hub.Stats().Followers == 0 {
		time.Sleep(time.Millisecond)
	}
	backend.hub.Publish(flows.Flow{Protocol: "udp"})
	if protocol := <-got; protocol != "udp" {
		t.Errorf("got %s", protocol)
	}
	server.Close()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "ended the stream") {
		t.Errorf("end %v", err)
	}
}

func TestNoAgent(t *testing.T) {
	runDir := t.TempDir()
	client := NewClient(filepath.Join(runDir, SocketName))
	client.runDir = runDir
	_, err := client.Status(context.Background())
	var noAgent *NoAgentError
	if !errors.As(err, &noAgent) ||
		!strings.Contains(err.Error(), "is it running? start it with `weft agent --config FILE`") {
		t.Errorf("error %v", err)
	}
	serve(t, filepath.Join(runDir, "lab-a", SocketName), &fake{hub: flows.NewHub(1)})
	if err := os.MkdirAll(filepath.Join(runDir, "dead"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(runDir, "dead", SocketName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = client.Status(context.Background())
	if err == nil || !strings.Contains(err.Error(), "lab-a/agent.sock") ||
		strings.Contains(err.Error(), "dead") {
		t.Errorf("error %v", err)
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), SocketName)
	old := serve(t, socket, &fake{hub: flows.NewHub(1)})
	serve(t, socket, &fake{hub: flows.NewHub(1), ready: true})
	// The old server must not take the new one's socket away when it ends.
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	if ready, err := NewClient(socket).Ready(context.Background()); err != nil || !ready.Ready {
		t.Errorf("%v %v", ready, err)
	}
}
