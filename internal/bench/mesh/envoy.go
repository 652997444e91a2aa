package mesh

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"weft.dev/weft/internal/keys/ca"
)

// The sidecars' names, which their certificates carry.
const (
	clientSide = "client"
	serverSide = "server"
)

// trustDomain is the sidecars' own.
const trustDomain = "mesh.bench"

// certValid is the life of their certificates: longer than any run.
const certValid = 7 * 24 * time.Hour

// writeCertificates makes an authority for one run and a certificate (ECDSA P-256) for each
// sidecar, all below dir, which is readable by its owner alone and removed after the run.
func writeCertificates(dir string) error {
	authority, err := ca.Init(filepath.Join(dir, "ca"), trustDomain, certValid)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "roots.pem"), authority.Bundle(), 0o600); err != nil {
		return fmt.Errorf("write the sidecars' roots: %w", err)
	}
	for _, side := range []string{clientSide, serverSide} {
		id, err := authority.Issue(side, certValid)
		if err != nil {
			return err
		}
		for name, pem := range map[string][]byte{side + ".crt": id.Cert, side + ".key": id.Key} {
			if err := os.WriteFile(filepath.Join(dir, name), pem, 0o600); err != nil {
				return fmt.Errorf("write a sidecar's certificate: %w", err)
			}
		}
	}
	return nil
}

// sidecar is an Envoy beside a pod's program: HTTP/2 comes in at one address and goes out to
// another, with mutual TLS 1.3 on the one of the two that is the wire.
type sidecar struct {
	side    string
	in, out netip.AddrPort
	dir     string // of the certificates
}

// object is an object of Envoy's configuration.
type object = map[string]any

// envoyTypes is what the names of the types of Envoy's extensions begin with.
const envoyTypes = "type.googleapis.com/envoy.extensions."

// config is the sidecar's configuration, in JSON. All that it does not name is as Envoy ships it.
func (s sidecar) config() ([]byte, error) {
	in := object{"filters": []any{s.connectionManager()}}
	out := object{
		"name": "next", "type": "STATIC", "connect_timeout": "5s",
		"load_assignment": object{"cluster_name": "next", "endpoints": []any{
			object{"lb_endpoints": []any{object{"endpoint": object{"address": address(s.out)}}}},
		}},
		"typed_extension_protocol_options": object{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                envoyTypes + "upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}},
			},
		},
	}
	if s.side == clientSide {
		out["transport_socket"] = s.tls("UpstreamTlsContext", serverSide, object{})
	} else {
		in["transport_socket"] = s.tls("DownstreamTlsContext", clientSide,
			object{"require_client_certificate": true})
	}
	config, err := json.MarshalIndent(object{"static_resources": object{
		"listeners": []any{
			object{"name": "in", "address": address(s.in), "filter_chains": []any{in}},
		},
		"clusters": []any{out},
	}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write Envoy's configuration: %w", err)
	}
	return config, nil
}

// connectionManager serves HTTP/2 and hands every request on. There is no access log.
func (s sidecar) connectionManager() object {
	return object{
		"name": "envoy.filters.network.http_connection_manager",
		"typed_config": object{
			"@type": envoyTypes +
				"filters.network.http_connection_manager.v3.HttpConnectionManager",
			"stat_prefix": s.side, "codec_type": "HTTP2",
			"route_config": object{"virtual_hosts": []any{object{
				"name": "all", "domains": []any{"*"},
				"routes": []any{
					object{"match": object{"prefix": "/"}, "route": object{"cluster": "next"}},
				},
			}}},
			"http_filters": []any{object{
				"name":         "envoy.filters.http.router",
				"typed_config": object{"@type": envoyTypes + "filters.http.router.v3.Router"},
			}},
		},
	}
}

// tls is a transport socket for TLS 1.3 alone, with this side's certificate, that takes no other
// peer's.
func (s sidecar) tls(kind, peer string, context object) object {
	file := func(name string) object { return object{"filename": filepath.Join(s.dir, name)} }
	context["@type"] = envoyTypes + "transport_sockets.tls.v3." + kind
	context["common_tls_context"] = object{
		"tls_params": object{
			"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3",
		},
		"alpn_protocols": []any{"h2"},
		"tls_certificates": []any{
			object{
				"certificate_chain": file(s.side + ".crt"), "private_key": file(s.side + ".key"),
			},
		},
		"validation_context": object{
			"trusted_ca": file("roots.pem"),
			"match_typed_subject_alt_names": []any{object{
				"san_type": "URI",
				"matcher":  object{"exact": "spiffe://" + trustDomain + "/node/" + peer},
			}},
		},
	}
	return object{"name": "envoy.transport_sockets.tls", "typed_config": context}
}

func address(at netip.AddrPort) object {
	return object{
		"socket_address": object{"address": at.Addr().String(), "port_value": at.Port()},
	}
}

// concurrency is how many worker threads a sidecar has, as Istio's have.
const concurrency = 2

// start writes the configuration and starts the sidecar in its pod.
func (s sidecar) start(ns, envoy string) (*process, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, s.side+".json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return nil, fmt.Errorf("write Envoy's configuration: %w", err)
	}
	// Hot restart shares memory by a number that is the machine's: two sidecars would be in each
	// other's way.
	return start(ns, envoy, "--config-path", path, "--concurrency", strconv.Itoa(concurrency),
		"--disable-hot-restart", "--log-level", "warning")
}
