package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"weft.dev/weft/internal/endpoint/endpointtest"
)

func TestHostileRequests(t *testing.T) {
	a := newAgent(t)
	h := Handler(a.Manager)
	netns, _ := endpointtest.NewPod(t)
	good := fmt.Sprintf(`{"containerID":"c1","ifName":"eth0","netns":%q}`, netns)
	for _, tc := range []struct {
		name, method, path, body, want string
		status                         int
	}{
		{"empty", "POST", "add", "", "EOF", 400},
		{"not JSON", "POST", "add", "hello", "invalid character", 400},
		{"null", "POST", "add", "null", "it is null", 400},
		{"array", "POST", "add", "[]", "cannot unmarshal array", 400},
		{"unknown field", "POST", "add", `{"containerId2":"x"}`, `unknown field \"containerId2\"`,
			400},
		{"wrong type", "POST", "add", `{"containerID":7}`, "cannot unmarshal number", 400},
		{"trailing data", "POST", "add", good + "{}", "something follows", 400},
		{"oversized", "POST", "add", `{"pod":"` + strings.Repeat("x", 2<<20) + `"}`, "too large",
			400},
		{"deep", "POST", "add", strings.Repeat("[", 100000), "request body", 400},
		{"bad address", "POST", "add", `{"addresses":["10.0.0"]}`, "ParseAddr", 400},
		{"no fields", "POST", "add", `{}`, "containerID", 400},
		{"get", "GET", "add", "", "Method Not Allowed", 405},
		{"unknown verb", "POST", "addd", "{}", "Not Found", 404},
		{"gc of everything", "POST", "gc", "{}", "network: empty", 400},
		{"check of nothing", "POST", "check", `{"containerID":"x","ifName":"eth0"}`,
			"no such endpoint", 404},
		{"del without interface", "POST", "del", `{"containerID":"x"}`, "ifName", 400},
		{"slash", "POST", "del", `{"containerID":"x","ifName":"../../x"}`, "ifName", 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w,
				httptest.NewRequest(tc.method, "/v1/cni/"+tc.path, strings.NewReader(tc.body)))
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.want) {
				t.Errorf("got %d %s, want %d %q", w.Code, w.Body, tc.status, tc.want)
			}
			var e types.Error
			if tc.status == http.StatusBadRequest &&
				(json.Unmarshal(w.Body.Bytes(), &e) != nil || e.Code == 0) {
				t.Errorf("not a CNI error: %s", w.Body)
			}
		})
	}
	a.nothingLeft()
}

func TestDelTwiceAndOfUnknown(t *testing.T) {
	a := newAgent(t)
	netns, _ := endpointtest.NewPod(t)
	if _, fail := a.run("ADD", "c1", netns, a.conf("1.1.0")); fail != nil {
		t.Fatal(fail)
	}
	for _, c := range []string{"c1", "c1", "nobody"} {
		if _, fail := a.run("DEL", c, netns, a.conf("1.1.0")); fail != nil {
			t.Errorf("DEL %s: %v", c, fail)
		}
		if _, fail := a.run("DEL", c, "", a.conf("1.1.0")); fail != nil {
			t.Errorf("DEL %s without netns: %v", c, fail)
		}
	}
	a.nothingLeft()
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"containerID":"c1","ifName":"eth0","netns":"/run/netns/x","labels":{"a":"b"},"addresses":["10.0.0.1"],"chained":true}`))
	f.Add([]byte(`{"keep":[{"containerID":"c1","ifName":"eth0"}],"network":"weft"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := decodeRequest(bytes.NewReader(data))
		if (req == nil) == (err == nil) {
			t.Fatalf("request %v with error %v", req, err)
		}
		if err != nil {
			return
		}
		out, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRequest(bytes.NewReader(out)); err != nil {
			t.Fatalf("decoded %q, but not its own encoding %q: %v", data, out, err)
		}
	})
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"weft","type":"weft-cni","instance":"a","args":{"cni":{"ips":["10.0.0.1/24"],"labels":[{"key":"a","value":"b"}]}}}`), "eth0", "K8S_POD_NAME=x")
	f.Add([]byte(`{"cniVersion":"0.3.1","name":"weft","prevResult":{"interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":0,"address":"10.0.0.1/24"}]}}`), "eth0", "IgnoreUnknown=1;A=b")
	f.Add([]byte(`{"prevResult":{"interfaces":[null],"ips":[null,{"interface":0}]}}`), "", "=")
	f.Add([]byte(`{"cni.dev/valid-attachments":[null]}`), "eth0", ";")
	f.Fuzz(func(t *testing.T, data []byte, ifName, args string) {
		c, err := parseConfig(data)
		if err != nil {
			if _, ok := err.(*types.Error); !ok {
				t.Fatalf("not a CNI error: %v", err)
			}
			return
		}
		if req, err := c.addRequest("c1", "/run/netns/x", ifName, args); err == nil {
			if _, err := json.Marshal(req); err != nil {
				t.Fatal(err)
			}
			if req.Chained {
				if out, err := c.passOn(); err != nil || !json.Valid(out) {
					t.Fatalf("passed on %q: %v", out, err)
				}
			}
		}
		_, _ = c.checkRequest("c1", "/run/netns/x", ifName)
		_, _ = c.gcRequest()
		if !strings.HasPrefix(c.socket(), "/") {
			t.Fatalf("socket %q is not absolute", c.socket())
		}
	})
}
