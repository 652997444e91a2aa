package admin

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"weft.dev/weft/internal/flows"
)

// FuzzTrace sends bodies that are not what the API expects: each must get a JSON answer.
func FuzzTrace(f *testing.F) {
	handler := Handler(&fake{hub: flows.NewHub(1)}, nil, quiet)
	for _, seed := range []string{`{"from":"a","to":"b"}`, `{`, `[]`, `null`, `{"from":null}`,
		`{"from":"a","to":"b"} x`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder,
			httptest.NewRequest("POST", "/v1/trace", strings.NewReader(body)))
		if !json.Valid(recorder.Body.Bytes()) || (recorder.Code != 200 && recorder.Code != 400) {
			t.Errorf("%q: %d %s", body, recorder.Code, recorder.Body)
		}
	})
}
