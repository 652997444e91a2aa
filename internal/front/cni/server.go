package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/ipam"
)

// Handler serves /v1/cni/{add,del,check,gc,status} on the agent's admin socket. Errors are
// CNI error objects. Who may connect is the socket's file mode's business.
func Handler(m *endpoint.Manager) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/cni/add",
		verb(func(ctx context.Context, req *request) (any, error) { return add(ctx, m, req) }))
	mux.Handle("POST /v1/cni/del", verb(func(ctx context.Context, req *request) (any, error) {
		return nil, m.Del(ctx, endpoint.DelRequest{Attachment: req.attachment(), NetNS: req.NetNS})
	}))
	mux.Handle("POST /v1/cni/check", verb(func(ctx context.Context, req *request) (any, error) {
		return nil, m.Check(ctx,
			endpoint.CheckRequest{Attachment: req.attachment(), NetNS: req.NetNS,
				Addresses: req.Addresses})
	}))
	mux.Handle("POST /v1/cni/gc",
		verb(func(ctx context.Context, req *request) (any, error) { return nil, gc(ctx, m, req) }))
	mux.Handle("POST /v1/cni/status",
		verb(func(context.Context, *request) (any, error) { return nil, status(m) }))
	mux.HandleFunc("/", unknownVerb)
	return mux
}

// unknownVerb answers in the form that every other answer has.
func unknownVerb(w http.ResponseWriter, r *http.Request) {
	status := http.StatusNotFound
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		status = http.StatusMethodNotAllowed
	}
	answer(w, status,
		types.NewError(types.ErrInternal, http.StatusText(status)+": "+r.Method+" "+r.URL.Path,
			"the verbs are POST /v1/cni/{add,del,check,gc,status}"))
}

// verb is an HTTP handler around a function of a request.
func verb(do func(context.Context, *request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := decodeRequest(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			answer(w, http.StatusBadRequest, err)
			return
		}
		result, err := do(r.Context(), req)
		if err != nil {
			cniErr := toCNI(err)
			answer(w, httpStatus(cniErr.Code), cniErr)
			return
		}
		if result == nil {
			result = struct{}{}
		}
		answer(w, http.StatusOK, result)
	})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client is gone if this fails
}

// decodeRequest takes exactly one object without unknown fields.
func decodeRequest(body io.Reader) (*request, error) {
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	var req *request
	err := dec.Decode(&req)
	if err == nil && req == nil {
		err = errors.New("it is null")
	}
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "request body: "+err.Error(),
			"plugin and agent may be of different versions")
	}
	return req, nil
}

func add(ctx context.Context, m *endpoint.Manager, req *request) (any, error) {
	res, err := m.Add(ctx, endpoint.AddRequest{
		Attachment: req.attachment(), NetNS: req.NetNS, Network: req.Network,
		Namespace: req.Namespace, Pod: req.Pod, PodUID: req.PodUID,
		Labels: req.Labels, Addresses: req.Addresses, Chained: req.Chained,
		PodDatapath: req.PodDatapath, NetworkID: req.NetworkID,
	})
	if err != nil {
		return nil, err
	}
	return toResult(res), nil
}

func gc(ctx context.Context, m *endpoint.Manager, req *request) error {
	if req.Network == "" {
		return fmt.Errorf("%w: network: empty, which would mean all", endpoint.ErrInvalid)
	}
	return m.GCNetwork(ctx, req.Network, req.Keep)
}

func status(m *endpoint.Manager) error {
	if err := m.Status(); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	return nil
}

// toResult describes an endpoint in the newest version's terms; the plugin converts.
func toResult(res *endpoint.AddResult) *current.Result {
	const hostSide, podSide = 0, 1
	out := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			hostSide: {Name: res.HostIf, Mac: res.GatewayMAC, Mtu: res.MTU},
			podSide:  {Name: res.PodIf, Mac: res.MAC, Mtu: res.MTU, Sandbox: res.NetNS},
		},
	}
	for _, a := range res.Addresses() {
		gateway := endpoint.GatewayIPv4
		if a.Is6() {
			gateway = endpoint.GatewayIPv6
		}
		out.IPs = append(out.IPs, &current.IPConfig{
			Interface: current.Int(podSide),
			Address:   net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
			Gateway:   gateway.AsSlice(),
		})
	}
	for _, r := range res.Routes {
		route := &types.Route{Dst: net.IPNet{IP: r.Dst.Addr().AsSlice(),
			Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())}}
		if r.Gateway.IsValid() {
			route.GW = r.Gateway.AsSlice()
		} else {
			route.Scope = current.Int(scopeLink)
		}
		out.Routes = append(out.Routes, route)
	}
	return out
}

// scopeLink is the kernel's RT_SCOPE_LINK.
const scopeLink = 253

// toCNI finds the CNI error code of a manager's error.
func toCNI(err error) *types.Error {
	var (
		already   *types.Error
		exhausted *ipam.ExhaustedError
		slots     *ipam.SlotsExhaustedError
		taken     *ipam.TakenError
		outside   *ipam.OutsideError
	)
	code := types.ErrInternal
	switch {
	case errors.As(err, &already):
		return already
	case errors.Is(err, endpoint.ErrNetNS):
		code = types.ErrInvalidNetNS
	case errors.Is(err, endpoint.ErrInvalid):
		code = types.ErrInvalidEnvironmentVariables
	case errors.Is(err, endpoint.ErrNotFound):
		code = types.ErrUnknownContainer
	case errors.Is(err, endpoint.ErrUnhealthy):
		code = CodeUnhealthy
	case errors.As(err, &outside):
		code = types.ErrInvalidNetworkConfig
	case errors.As(err, &exhausted), errors.As(err, &slots), errors.As(err, &taken),
		errors.Is(err, endpoint.ErrUnavailable),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = types.ErrTryAgainLater
	}
	// Joined errors come a line each; runtimes log one line.
	return types.NewError(code, strings.ReplaceAll(err.Error(), "\n", "; "), "")
}

// httpStatus is for people who look at the socket; the plugin goes by the code.
func httpStatus(code uint) int {
	switch code {
	case types.ErrInternal:
		return http.StatusInternalServerError
	case types.ErrTryAgainLater, types.ErrPluginNotAvailable:
		return http.StatusServiceUnavailable
	case types.ErrUnknownContainer:
		return http.StatusNotFound
	case CodeUnhealthy:
		return http.StatusConflict
	}
	return http.StatusBadRequest
}
