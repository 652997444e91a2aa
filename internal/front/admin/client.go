package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weft.dev/weft/internal/flows"
)

// DefaultRunDir holds agent.sock, and one directory per named instance with its own.
const DefaultRunDir = "/run/weft"

// SocketName is the admin socket's name in an instance's directory.
const SocketName = "agent.sock"

// maxOthers is how many other agents a NoAgentError names.
const maxOthers = 5

// NoAgentError says that nobody answers on a socket.
type NoAgentError struct {
	Socket string
	// Others are sockets of other instances, on which somebody answers.
	Others []string
	Cause  error
}

// Error says what to do.
func (e *NoAgentError) Error() string {
	if errors.Is(e.Cause, os.ErrPermission) {
		return fmt.Sprintf("may not open %s: run as root", e.Socket)
	}
	text := fmt.Sprintf("no agent answers on %s: is it running? start it with `weft agent --config FILE`", e.Socket)
	if len(e.Others) == 0 {
		return text
	}
	shown, more := e.Others, ""
	if len(shown) > maxOthers {
		more = fmt.Sprintf(" and %d more", len(shown)-maxOthers)
		shown = shown[:maxOthers]
	}
	return fmt.Sprintf("%s (agents answer on %s%s: name one with --instance or --socket)", text,
		strings.Join(shown, ", "), more)
}

// Unwrap is the error of the connection.
func (e *NoAgentError) Unwrap() error { return e.Cause }

// Sockets finds the sockets below a run directory on which somebody listens:
// the default instance's first, then by name.
func Sockets(runDir string) []string {
	candidates := []string{filepath.Join(runDir, SocketName)}
	named, _ := filepath.Glob(filepath.Join(runDir, "*", SocketName))
	slices.Sort(named)
	var alive []string
	for _, socket := range append(candidates, named...) {
		connection, err := net.DialTimeout("unix", socket, time.Second)
		// A socket that we may not open has an owner all the same.
		if err == nil {
			connection.Close()
		}
		if err == nil || errors.Is(err, syscall.EACCES) {
			alive = append(alive, socket)
		}
	}
	return alive
}

// Client talks to one agent.
type Client struct {
	socket string
	runDir string
	http   *http.Client
}

// NewClient makes a client for the agent on a socket. It does not connect yet.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
	}
	return &Client{
		socket: socket, runDir: DefaultRunDir,
		http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
	}
}

// Near sets the run directory in which a NoAgentError looks for other agents.
func (c *Client) Near(runDir string) *Client {
	c.runDir = runDir
	return c
}

// Status asks for the agent's status.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return get[*Status](ctx, c, "/v1/status", nil)
}

// Ready asks whether the agent is ready.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	response, err := c.do(ctx, http.MethodGet, "/v1/readyz", nil, nil)
	if err != nil {
		return Readiness{}, err
	}
	defer response.Body.Close()
	return decode[Readiness](response)
}

// Endpoints asks for the node's endpoints.
func (c *Client) Endpoints(ctx context.Context) ([]Endpoint, error) {
	return get[[]Endpoint](ctx, c, "/v1/endpoints", nil)
}

// Nodes asks for the nodes that the agent knows.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	return get[[]Node](ctx, c, "/v1/nodes", nil)
}

// Drops asks what was dropped and why; all adds the reasons that never happened.
func (c *Client) Drops(ctx context.Context, all bool) ([]Drop, error) {
	return get[[]Drop](ctx, c, "/v1/drops", url.Values{"all": {strconv.FormatBool(all)}})
}

// Encrypt asks for /v1/encrypt.
func (c *Client) Encrypt(ctx context.Context) (*Encryption, error) {
	return get[*Encryption](ctx, c, "/v1/encrypt", nil)
}

// FlowTable asks for at most limit rows of the flow table.
func (c *Client) FlowTable(ctx context.Context, limit int) ([]TableFlow, error) {
	return get[[]TableFlow](ctx, c, "/v1/flowtable", url.Values{"limit": {strconv.Itoa(limit)}})
}

// Sysdump asks for everything.
func (c *Client) Sysdump(ctx context.Context) (Sysdump, error) {
	return get[Sysdump](ctx, c, "/v1/sysdump", nil)
}

// Trace asks what the live programs would do with a packet.
func (c *Client) Trace(ctx context.Context, request TraceRequest) (*TraceResult, error) {
	return call[*TraceResult](ctx, c, http.MethodPost, "/v1/trace", nil, request)
}

// Policies asks for the policies that the node enforces.
func (c *Client) Policies(ctx context.Context) (*Policies, error) {
	return get[*Policies](ctx, c, "/v1/policies", nil)
}

// Policy asks for one of them, by NAMESPACE/NAME; kind may be empty if only one kind has that name.
func (c *Client) Policy(ctx context.Context, kind, key string) (*PolicyDetail, error) {
	return get[*PolicyDetail](ctx, c, "/v1/policies/get", url.Values{"kind": {kind}, "name": {key}})
}

// ExplainPolicy asks what the policies in force say of a packet.
func (c *Client) ExplainPolicy(ctx context.Context,
	request PolicyRequest) (*PolicyExplanation, error) {
	return call[*PolicyExplanation](ctx, c, http.MethodPost, "/v1/policies/explain", nil, request)
}

// ForgetNode has the agent forget what was lost of a node, by its name, or one lost range.
func (c *Client) ForgetNode(ctx context.Context, what string) ([]NoNode, error) {
	return call[[]NoNode](ctx, c, http.MethodPost, "/v1/nodes/forget", nil,
		ForgetRequest{What: what})
}

// Flows calls got for each selected record until there are no more, got fails or ctx ends.
func (c *Client) Flows(ctx context.Context, query FlowQuery, got func(flows.Flow) error) error {
	values := url.Values{"from": query.From, "to": query.To, "last": {strconv.Itoa(query.Last)}}
	for name, value := range map[string]string{"verdict": query.Verdict, "reason": query.Reason,
		"protocol": query.Protocol} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if query.Follow {
		values.Set("follow", "true")
	}
	response, err := c.do(ctx, http.MethodGet, "/v1/flows", values, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := refusal(response); err != nil {
		return err
	}
	decoder := json.NewDecoder(response.Body)
	for {
		var flow flows.Flow
		if err := decoder.Decode(&flow); err != nil {
			return c.streamEnd(ctx, err, query.Follow)
		}
		if err := got(flow); err != nil {
			return err
		}
	}
}

// streamEnd tells a stream that ended from one that broke.
func (c *Client) streamEnd(ctx context.Context, err error, follow bool) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, io.EOF) && !follow:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("the agent on %s ended the stream: it was stopped", c.socket)
	}
	return fmt.Errorf("read flows from %s: %w", c.socket, err)
}

func (c *Client) do(ctx context.Context, method, path string, query url.Values,
	body any) (*http.Response, error) {
	var reader io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		reader = bytes.NewReader(encoded)
	}
	target := url.URL{Scheme: "http", Host: "weft", Path: path, RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), reader)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	response, err := c.http.Do(request)
	if err == nil {
		return response, nil
	}
	var operation *net.OpError
	if errors.As(err, &operation) && operation.Op == "dial" {
		return nil, &NoAgentError{Socket: c.socket, Others: c.others(), Cause: operation}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("the agent on %s does not answer in time", c.socket)
	}
	return nil, fmt.Errorf("talk to the agent on %s: %w", c.socket, err)
}

// others are the sockets that answer, without this client's.
func (c *Client) others() []string {
	return slices.DeleteFunc(Sockets(c.runDir),
		func(socket string) bool { return socket == c.socket })
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	return call[T](ctx, c, http.MethodGet, path, query, nil)
}

func call[T any](ctx context.Context, c *Client, method, path string, query url.Values,
	body any) (T, error) {
	var none T
	response, err := c.do(ctx, method, path, query, body)
	if err != nil {
		return none, err
	}
	defer response.Body.Close()
	if err := refusal(response); err != nil {
		return none, err
	}
	return decode[T](response)
}

// refusal is the error of an answer that is not 2xx.
func refusal(response *http.Response) error {
	if response.StatusCode < 300 {
		return nil
	}
	var answer struct {
		Error string `json:"error"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, MaxBody)).Decode(&answer); err != nil ||
		answer.Error == "" {
		return &StatusError{response.StatusCode,
			fmt.Sprintf("the agent answered %s", response.Status)}
	}
	return &StatusError{response.StatusCode, answer.Error}
}

func decode[T any](response *http.Response) (T, error) {
	var value T
	if err := json.NewDecoder(response.Body).Decode(&value); err != nil {
		return value, fmt.Errorf("the agent's answer makes no sense (is it of another version?): %w", err)
	}
	return value, nil
}
