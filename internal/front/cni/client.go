package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"weft.dev/weft/internal/endpoint"
)

// request is what the plugin sends to the agent; each verb uses its part.
type request struct {
	ContainerID string                `json:"containerID,omitempty"`
	IfName      string                `json:"ifName,omitempty"`
	NetNS       string                `json:"netns,omitempty"`
	Network     string                `json:"network,omitempty"`
	Namespace   string                `json:"namespace,omitempty"`
	Pod         string                `json:"pod,omitempty"`
	PodUID      string                `json:"podUID,omitempty"`
	Labels      map[string]string     `json:"labels,omitempty"`
	Addresses   []netip.Addr          `json:"addresses,omitempty"`
	Chained     bool                  `json:"chained,omitempty"`
	PodDatapath string                `json:"datapath,omitempty"`
	NetworkID   uint32                `json:"networkID,omitempty"`
	Keep        []endpoint.Attachment `json:"keep,omitempty"`
}

func (r *request) attachment() endpoint.Attachment {
	return endpoint.Attachment{ContainerID: r.ContainerID, IfName: r.IfName}
}

// maxBody bounds requests and answers.
const maxBody = 1 << 20

// agentDownError says that no agent answered, as opposed to one that refused.
type agentDownError struct {
	socket string
	cause  error
}

// Error names the socket.
func (e *agentDownError) Error() string {
	return fmt.Sprintf("the Weft agent does not answer on %s: %v", e.socket, e.cause)
}

// Unwrap returns the cause.
func (e *agentDownError) Unwrap() error { return e.cause }

// call has the agent do a verb and decodes its answer into result unless that is nil.
func call(socket, verb string, timeout time.Duration, req *request, result any) error {
	body, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	httpReq, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://weft/v1/cni/"+verb,
		bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	httpReq.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(httpReq)
	if err == nil {
		defer resp.Body.Close()
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	}
	if ctx.Err() != nil {
		// It is there but stuck: a DEL must not go past it.
		return types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("the Weft agent on %s took longer than %s to %s", socket, timeout, verb),
			"")
	}
	if err != nil {
		return &agentDownError{socket: socket, cause: err}
	}
	return decodeAnswer(resp.StatusCode, body, result)
}

func decodeAnswer(status int, body []byte, result any) error {
	if status == http.StatusOK {
		if result == nil {
			return nil
		}
		if err := json.Unmarshal(body, result); err != nil {
			return types.NewError(types.ErrDecodingFailure, "the agent's answer", err.Error())
		}
		return nil
	}
	var e types.Error
	if err := json.Unmarshal(body, &e); err != nil || e.Msg == "" {
		return types.NewError(types.ErrInternal,
			fmt.Sprintf("the agent answered with HTTP status %d", status),
			string(body[:min(len(body), 200)]))
	}
	return &e
}
