package nodeid_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
)

// workloadAPI is a SPIFFE Workload API that gives what the test tells it.
type workloadAPI struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	updates chan *workload.X509SVIDResponse
	refuse  error
}

// FetchX509SVID streams what comes.
func (w *workloadAPI) FetchX509SVID(_ *workload.X509SVIDRequest,
	stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	meta, _ := metadata.FromIncomingContext(stream.Context())
	if len(meta.Get("workload.spiffe.io")) != 1 {
		return status.Error(codes.InvalidArgument, "security header missing")
	}
	if w.refuse != nil {
		return w.refuse
	}
	for {
		select {
		case update := <-w.updates:
			if err := stream.Send(update); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// serve listens on a unix socket.
func (w *workloadAPI) serve(t *testing.T, path string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, w)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-ended })
}

func svid(t *testing.T, authority *nodeidtest.Authority, cert *tls.Certificate) *workload.X509SVID {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return &workload.X509SVID{SpiffeId: cert.Leaf.URIs[0].String(), X509Svid: cert.Certificate[0],
		X509SvidKey: key, Bundle: authority.Cert.Raw}
}

func newSPIRE(t *testing.T, socket string) *nodeid.SPIRE {
	t.Helper()
	source, err := nodeid.NewSPIRE("unix://"+socket, nodeidtest.TrustDomain, "n1", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	})
	return source
}

func TestSPIRE(t *testing.T) {
	authority := nodeidtest.NewAuthority(t)
	socket := filepath.Join(t.TempDir(), "api.sock")
	// The agent may start before SPIRE does.
	source := newSPIRE(t, socket)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	if _, err := source.Certificate(short); !errors.Is(err, nodeid.ErrNoCertificate) {
		t.Errorf("before SPIRE: %v", err)
	}
	cancel()
	api := &workloadAPI{updates: make(chan *workload.X509SVIDResponse, 1)}
	api.serve(t, socket)

	// A workload with several identities gets the node's.
	other, first := authority.Node(t, "n2", nil), authority.Node(t, "n1", nil)
	api.updates <- &workload.X509SVIDResponse{Svids: []*workload.X509SVID{svid(t, authority, other),
		svid(t, authority, first)}}
	wait(t, source, first)
	roots, err := source.Roots(t.Context())
	if err != nil || !roots.Equal(authority.Pool) {
		t.Errorf("roots: %v", err)
	}
	cert, _ := source.Certificate(t.Context())
	if name, err := check(authority).Verify([]*x509.Certificate{cert.Leaf}); name != "n1" ||
		err != nil {
		t.Errorf("%q, %v", name, err)
	}

	// Rotation.
	second := authority.Node(t, "n1", nil)
	api.updates <- &workload.X509SVIDResponse{Svids: []*workload.X509SVID{svid(t, authority,
		second)}}
	wait(t, source, second)

	// Another's certificate does not replace it.
	api.updates <- &workload.X509SVIDResponse{Svids: []*workload.X509SVID{svid(t, authority,
		other)}}
	for range 3000 {
		if source.Problem() != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := source.Problem(); !errors.Is(err, nodeid.ErrWrongNode) ||
		!strings.Contains(err.Error(), "register spiffe://test.weft/node/n1") {
		t.Errorf("problem: %v", err)
	}
	wait(t, source, second)
}

// wait waits until the source gives a certificate.
func wait(t *testing.T, source *nodeid.SPIRE, want *tls.Certificate) {
	t.Helper()
	for range 1000 {
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		got, err := source.Certificate(short)
		cancel()
		if err == nil && got.Leaf.Equal(want.Leaf) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the certificate does not come: %v", source.Problem())
}

// SPIRE knows no entry for this process.
func TestSPIREWithoutEntry(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	api := &workloadAPI{refuse: status.Error(codes.PermissionDenied, "no identity issued")}
	api.serve(t, socket)
	source := newSPIRE(t, socket)
	_, err := source.Certificate(t.Context())
	if !errors.Is(err, nodeid.ErrNoCertificate) ||
		!strings.Contains(err.Error(), "no identity issued") {
		t.Errorf("%v", err)
	}
}
