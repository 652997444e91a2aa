package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/flows"
)

// api holds the handlers.
type api struct {
	backend Backend
	log     *slog.Logger
}

func (a *api) healthz(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, map[string]bool{"ok": true})
}

func (a *api) readyz(w http.ResponseWriter, _ *http.Request) error {
	ready := a.backend.Ready()
	if !ready.Ready {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		return json.NewEncoder(w).Encode(ready)
	}
	return writeJSON(w, ready)
}

// answer serves a path that takes nothing with what is asked of the backend.
func answer[T any](ask func(context.Context) (T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		value, err := ask(r.Context())
		if err != nil {
			return err
		}
		return writeJSON(w, value)
	}
}

// answerList is answer for a slice, [] when there is nothing.
func answerList[T any](ask func(context.Context) ([]T, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		items, err := ask(r.Context())
		return list(w, items, err)
	}
}

func (a *api) forgetNode(w http.ResponseWriter, r *http.Request) error {
	var request ForgetRequest
	if err := readJSON(r, &request); err != nil {
		return err
	}
	if request.What == "" {
		return &StatusError{http.StatusBadRequest, `bad request body: field "what" is missing`}
	}
	gone, err := a.backend.ForgetNode(r.Context(), request.What)
	return list(w, gone, err)
}

func (a *api) drops(w http.ResponseWriter, r *http.Request) error {
	all, err := boolQuery(r.URL.Query(), "all")
	if err != nil {
		return err
	}
	drops, err := a.backend.Drops(r.Context(), all)
	return list(w, drops, err)
}

func (a *api) flowTable(w http.ResponseWriter, r *http.Request) error {
	limit, err := intQuery(r.URL.Query(), "limit", 1000)
	if err != nil {
		return err
	}
	rows, err := a.backend.FlowTable(r.Context(), limit)
	return list(w, rows, err)
}

func (a *api) trace(w http.ResponseWriter, r *http.Request) error {
	var request TraceRequest
	if err := readJSON(r, &request); err != nil {
		return err
	}
	for field, value := range map[string]string{"from": request.From, "to": request.To} {
		if value == "" {
			return &StatusError{http.StatusBadRequest,
				fmt.Sprintf("bad request body: field %q is missing", field)}
		}
	}
	result, err := a.backend.Trace(r.Context(), request)
	if err != nil {
		return err
	}
	return writeJSON(w, result)
}

// flows streams records as JSON lines.
func (a *api) flows(w http.ResponseWriter, r *http.Request) error {
	query, err := parseFlowQuery(r.URL.Query())
	if err != nil {
		return err
	}
	control := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	w.Header().Set("Content-Type", "application/jsonl")
	if query.Follow {
		// The caller must see that the stream is open before the first record comes.
		control.Flush()
	}
	err = a.backend.Flows(r.Context(), query, func(flow flows.Flow) error {
		if err := encoder.Encode(flow); err != nil {
			return err
		}
		if query.Follow {
			return control.Flush()
		}
		return nil
	})
	if err != nil && r.Context().Err() == nil {
		// The stream has begun; a status can no longer be sent.
		a.log.Debug("flow stream ended", "err", err)
	}
	return nil
}

func parseFlowQuery(values url.Values) (FlowQuery, error) {
	query := FlowQuery{Filter: flows.Filter{
		From: values["from"], To: values["to"],
		Verdict: values.Get("verdict"), Reason: values.Get("reason"),
		Protocol: values.Get("protocol"),
	}}
	var err error
	if query.Last, err = intQuery(values, "last", 0); err != nil {
		return query, err
	}
	if query.Follow, err = boolQuery(values, "follow"); err != nil {
		return query, err
	}
	if _, err := query.Compile(); err != nil {
		return query, &StatusError{http.StatusBadRequest, err.Error()}
	}
	return query, nil
}

func intQuery(values url.Values, name string, fallback int) (int, error) {
	text := values.Get(name)
	if text == "" {
		return fallback, nil
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		return 0, &StatusError{http.StatusBadRequest,
			fmt.Sprintf("query parameter %s is %q: a whole number is expected", name, text)}
	}
	return number, nil
}

func boolQuery(values url.Values, name string) (bool, error) {
	text := values.Get(name)
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, &StatusError{http.StatusBadRequest,
			fmt.Sprintf("query parameter %s is %q: use true or false", name, text)}
	}
	return value, nil
}

// checkQuery refuses parameters that the path does not have: a mistyped filter would select
// everything.
func checkQuery(r *http.Request, known []string) error {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return fmt.Errorf("bad query: %w", err)
	}
	for name := range values {
		if slices.Contains(known, name) {
			continue
		}
		if len(known) == 0 {
			return fmt.Errorf("%s takes no query parameters, and %q was given", r.URL.Path, name)
		}
		return fmt.Errorf("unknown query parameter %q: %s takes %s", name, r.URL.Path,
			strings.Join(known, ", "))
	}
	return nil
}

// list answers a slice, [] when there is nothing.
func list[T any](w http.ResponseWriter, items []T, err error) error {
	if err != nil {
		return err
	}
	if items == nil {
		items = []T{}
	}
	return writeJSON(w, items)
}
