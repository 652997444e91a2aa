package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"weft.dev/weft/internal/keys/nodeid"
)

const (
	// DefaultPort is where the authority's server listens.
	DefaultPort = 4552

	joinPath  = "/v1/join"
	renewPath = "/v1/renew"
	// maxBody bounds requests and answers.
	maxBody = 64 << 10
	// maxConns bounds connections, maxWait how long each of their steps may take.
	maxConns = 128
	maxWait  = 10 * time.Second
	// serverValid is the life of the server's own certificate, made anew before it ends.
	serverValid = 24 * time.Hour
)

// joinRequest is what a joining node sends.
type joinRequest struct {
	// Secret proves the token. It is said only to a server whose root has the token's pin.
	Secret string `json:"secret"`
	CSR    string `json:"csr"`
}

// renewRequest is what a node sends whose certificate shows who it is.
type renewRequest struct {
	CSR string `json:"csr"`
}

// Server signs for nodes that join and renew.
type Server struct {
	authority *Authority
	valid     time.Duration
	log       *slog.Logger

	mu   sync.Mutex
	cert *tls.Certificate
	// renewing keeps two renewals from both finding the same certificate to be the newest.
	renewing sync.Mutex
}

// NewServer makes a server that gives certificates of that life.
func (a *Authority) NewServer(valid time.Duration, log *slog.Logger) (*Server, error) {
	if valid < time.Minute || valid > MaxValid {
		return nil, fmt.Errorf("certificates that are valid for %v: give one minute to %v", valid,
			MaxValid)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{authority: a, valid: valid, log: log}
	_, err := s.certificate(nil)
	return s, err
}

// Serve answers until ctx is done.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+joinPath, s.handle("join", s.join))
	mux.HandleFunc("POST "+renewPath, s.handle("renew", s.renew))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: maxWait, ReadTimeout: maxWait, WriteTimeout: maxWait,
		IdleTimeout: maxWait, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, GetCertificate: s.certificate,
			SessionTicketsDisabled: true,
			// Checked where it counts: one that joins has none yet.
			ClientAuth: tls.RequestClientCert, NextProtos: []string{"http/1.1"},
		},
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxWait)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			_ = server.Close()
		}
	})
	defer stop()
	err := server.ServeTLS(netutil.LimitListener(listener, maxConns), "", "")
	if errors.Is(err, http.ErrServerClosed) {
		// A node whose token is spent shall get its certificate.
		<-ended
		return nil
	}
	return fmt.Errorf("serve certificates: %w", err)
}

// certificate gives the server's own certificate, a new one when two thirds of the last one's life
// are over.
func (s *Server) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert != nil && s.authority.now().Before(nodeid.RenewAfter(s.cert.Leaf)) {
		return s.cert, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the server's key: %w", err)
	}
	leaf, err := s.authority.signLeaf(&x509.Certificate{
		URIs: []*url.URL{{Scheme: "spiffe", Host: s.authority.trustDomain,
			Path: serverPath}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public(), serverValid)
	if err != nil {
		return nil, fmt.Errorf("sign the server's certificate: %w", err)
	}
	// The root comes too: one that joins knows nothing of it but its hash.
	s.cert = &tls.Certificate{Certificate: [][]byte{leaf.Raw, s.authority.root.Raw},
		PrivateKey: key, Leaf: leaf}
	return s.cert, nil
}

// handle wraps a request's work with its bounds, its answer and its log line.
func (s *Server) handle(what string,
	work func(r *http.Request, body []byte) (string, *x509.Certificate, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, "request too large or too slow", http.StatusRequestEntityTooLarge)
			return
		}
		node, leaf, err := work(r, body)
		status, said := http.StatusOK, answer{}
		if err != nil {
			status, said = refusal(err)
			s.log.Warn("refused a node", "what", what, "node", node, "from", r.RemoteAddr, "err",
				err)
		} else {
			said = answer{Cert: string(encodeCerts(leaf.Raw)), Bundle: string(s.authority.Bundle())}
			s.log.Info("signed a node's certificate", "what", what, "node", node, "from",
				r.RemoteAddr, "serial", leaf.SerialNumber.Text(16), "notAfter", leaf.NotAfter)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(said)
	}
}

// join signs for a node that has a token. The token is spent last, when nothing but the signing is
// left.
func (s *Server) join(_ *http.Request, body []byte) (string, *x509.Certificate, error) {
	var request joinRequest
	if err := json.Unmarshal(body, &request); err != nil {
		return "", nil, fmt.Errorf("%w: not JSON", ErrRequest)
	}
	secret, err := base64.RawURLEncoding.DecodeString(request.Secret)
	if err != nil || len(secret) != secretSize {
		return "", nil, ErrTokenUnknown
	}
	defer clear(secret)
	info, err := s.authority.checkToken(secret)
	if err != nil {
		return info.Node, nil, err
	}
	public, err := s.checkCSR(request.CSR, info.Node)
	if err != nil {
		return info.Node, nil, err
	}
	if err := s.authority.useToken(secret); err != nil {
		return info.Node, nil, err
	}
	leaf, err := s.authority.sign(info.Node, public, s.valid, "join", "")
	return info.Node, leaf, err
}

// renew signs for a node whose certificate is still good.
func (s *Server) renew(r *http.Request, body []byte) (string, *x509.Certificate, error) {
	check := nodeid.Check{Roots: s.authority.roots(), TrustDomain: s.authority.trustDomain,
		Role: nodeid.Client, Now: s.authority.now()}
	node, err := check.Verify(r.TLS.PeerCertificates)
	if err != nil {
		return "", nil, err
	}
	var request renewRequest
	if err := json.Unmarshal(body, &request); err != nil {
		return node, nil, fmt.Errorf("%w: not JSON", ErrRequest)
	}
	public, err := s.checkCSR(request.CSR, node)
	if err != nil {
		return node, nil, err
	}
	s.renewing.Lock()
	defer s.renewing.Unlock()
	own := r.TLS.PeerCertificates[0]
	if err := s.authority.renewable(node, own); err != nil {
		return node, nil, err
	}
	leaf, err := s.authority.sign(node, public, s.valid, "renew", own.SerialNumber.Text(16))
	return node, leaf, err
}

// checkCSR holds a request to the node that makes it, and returns the key to sign. Nothing else of
// it is taken over.
func (s *Server) checkCSR(text, node string) (crypto.PublicKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("%w: no CERTIFICATE REQUEST in PEM", ErrRequest)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: it is not signed with its key: %w", ErrRequest, err)
	}
	if len(request.URIs) != 1 {
		return nil, fmt.Errorf("%w: it names %d URIs, want one", ErrRequest, len(request.URIs))
	}
	trustDomain, name, err := nodeid.Parse(request.URIs[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	if trustDomain != s.authority.trustDomain || name != node {
		return nil, fmt.Errorf("%w: it asks for %s, and may for node %s", nodeid.ErrWrongNode,
			request.URIs[0], node)
	}
	return request.PublicKey, checkPublicKey(request.PublicKey)
}
