package nodeid

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// DefaultSPIRESocket is where a SPIRE agent listens if nothing else is configured.
const DefaultSPIRESocket = "unix:///run/spire/sockets/agent.sock"

// watchAgain is how long to wait before a watch that the Workload API ended for good is begun anew.
const watchAgain = 5 * time.Second

// SPIRE is a Source that follows SPIRE's (or any other) SPIFFE Workload API.
type SPIRE struct {
	id     spiffeid.ID
	client *workloadapi.Client
	cancel context.CancelFunc
	ended  chan struct{}

	mu    sync.Mutex
	cert  *tls.Certificate
	roots *x509.CertPool
	// problem is why there is no newer certificate, nil if the last update was good.
	problem error
	// answered is closed when the API has first said something, good or bad.
	answered chan struct{}
	first    sync.Once
}

// NewSPIRE begins to watch a Workload API. It does not wait for it: until its first answer
// Certificate waits for as long as its context lets it, and then says why there is none.
func NewSPIRE(socket, trustDomain, node string, log *slog.Logger) (*SPIRE, error) {
	uri, err := URI(trustDomain, node)
	if err != nil {
		return nil, err
	}
	id, err := spiffeid.FromURI(uri)
	if err != nil {
		return nil, err
	}
	if err := workloadapi.ValidateAddress(socket); err != nil {
		return nil, fmt.Errorf("keys.certificates.spireSocket: %q: %w: give it as in %s", socket,
			err, DefaultSPIRESocket)
	}
	ctx, cancel := context.WithCancel(context.Background())
	client, err := workloadapi.New(ctx, workloadapi.WithAddr(socket))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("workload API at %s: %w", socket, err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &SPIRE{id: id, client: client, cancel: cancel, ended: make(chan struct{}),
		answered: make(chan struct{}),
		problem: fmt.Errorf("%w: the workload API at %s has not answered yet", ErrNoCertificate,
			socket)}
	go s.watch(ctx, log)
	return s, nil
}

func (s *SPIRE) watch(ctx context.Context, log *slog.Logger) {
	defer close(s.ended)
	for {
		err := s.client.WatchX509Context(ctx, &spireWatcher{s, log})
		if ctx.Err() != nil {
			return
		}
		log.Warn("Workload API: the watch ended, beginning anew", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchAgain):
		}
	}
}

// spireWatcher keeps the callbacks out of SPIRE's own methods.
type spireWatcher struct {
	*SPIRE
	log *slog.Logger
}

// OnX509ContextUpdate implements workloadapi.X509ContextWatcher.
func (w *spireWatcher) OnX509ContextUpdate(update *workloadapi.X509Context) {
	cert, roots, err := w.pick(update)
	if err != nil {
		w.log.Warn("Workload API: update not usable", "err", err)
	}
	w.set(cert, roots, err)
}

// OnX509ContextWatchError implements workloadapi.X509ContextWatcher.
func (w *spireWatcher) OnX509ContextWatchError(err error) {
	if !errors.Is(err, context.Canceled) {
		w.set(nil, nil, fmt.Errorf("%w: workload API: %w", ErrNoCertificate, err))
	}
}

// set keeps what is good. A certificate stays while the API is away or gives another's: it expires
// by itself.
func (s *SPIRE) set(cert *tls.Certificate, roots *x509.CertPool, problem error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = problem
	if problem == nil {
		s.cert, s.roots = cert, roots
	}
	s.first.Do(func() { close(s.answered) })
}

// pick finds this node's own certificate and trust domain in an update.
func (s *SPIRE) pick(update *workloadapi.X509Context) (*tls.Certificate, *x509.CertPool, error) {
	svid, err := s.pickSVID(update.SVIDs)
	if err != nil {
		return nil, nil, err
	}
	bundle, err := update.Bundles.GetX509BundleForTrustDomain(s.id.TrustDomain())
	if err != nil {
		return nil, nil, fmt.Errorf("%w: the workload API gave no bundle for trust domain %q",
			ErrForeign, s.id.TrustDomain())
	}
	roots := x509.NewCertPool()
	for _, root := range bundle.X509Authorities() {
		roots.AddCert(root)
	}
	cert := &tls.Certificate{PrivateKey: svid.PrivateKey, Leaf: svid.Certificates[0]}
	for _, link := range svid.Certificates {
		cert.Certificate = append(cert.Certificate, link.Raw)
	}
	return cert, roots, nil
}

func (s *SPIRE) pickSVID(svids []*x509svid.SVID) (*x509svid.SVID, error) {
	var names []string
	for _, svid := range svids {
		if svid.ID == s.id {
			return svid, nil
		}
		names = append(names, svid.ID.String())
	}
	return nil, fmt.Errorf("%w: the workload API gave %s: register %s for this agent", ErrWrongNode,
		strings.Join(names, ", "), s.id)
}

// Certificate implements Source.
func (s *SPIRE) Certificate(ctx context.Context) (*tls.Certificate, error) {
	cert, _, err := s.wait(ctx)
	return cert, err
}

// Roots implements Source.
func (s *SPIRE) Roots(ctx context.Context) (*x509.CertPool, error) {
	_, roots, err := s.wait(ctx)
	return roots, err
}

// wait returns what there is. Only before the API's first answer it waits.
func (s *SPIRE) wait(ctx context.Context) (*tls.Certificate, *x509.CertPool, error) {
	select {
	case <-s.answered:
	case <-ctx.Done():
	case <-s.ended:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert == nil {
		return nil, nil, s.problem
	}
	return s.cert, s.roots, nil
}

// Problem is why there is no newer certificate, nil if nothing is wrong.
func (s *SPIRE) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// Close implements Source.
func (s *SPIRE) Close() error {
	s.cancel()
	<-s.ended
	return s.client.Close()
}
