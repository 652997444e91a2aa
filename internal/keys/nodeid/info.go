package nodeid

import (
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"
)

// Kinds of sources, as the configuration names them.
const (
	SourceFiles = "files"
	SourceSPIRE = "spire"
)

// Settings say where a node's identity comes from.
type Settings struct {
	// Source is SourceFiles or SourceSPIRE.
	Source string
	// Paths are those of SourceFiles.
	Paths Paths
	// Socket is that of SourceSPIRE, "" for the default.
	Socket string
	// TrustDomain and Node are the identity that is expected.
	TrustDomain, Node string
	Log               *slog.Logger
}

// Open makes the source that the settings name.
func Open(settings Settings) (Source, error) {
	if _, err := URI(settings.TrustDomain, settings.Node); err != nil {
		return nil, err
	}
	switch settings.Source {
	case SourceFiles:
		source, err := NewFiles(settings.Paths)
		if err != nil {
			return nil, err
		}
		return source, nil
	case SourceSPIRE:
		socket := settings.Socket
		if socket == "" {
			socket = DefaultSPIRESocket
		}
		source, err := NewSPIRE(socket, settings.TrustDomain, settings.Node, settings.Log)
		if err != nil {
			return nil, err
		}
		return source, nil
	}
	return nil, fmt.Errorf("keys.certificates.source: %q: use %q or %q", settings.Source,
		SourceFiles, SourceSPIRE)
}

// Info is what a status line shows of a certificate.
type Info struct {
	ID        string    `json:"id"`
	Node      string    `json:"node,omitempty"`
	Issuer    string    `json:"issuer"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// RenewAfter is when two thirds of its life are over.
	RenewAfter time.Time `json:"renewAfter"`
}

// Inspect reads what a certificate says, without judging it.
func Inspect(cert *x509.Certificate) Info {
	info := Info{
		Issuer: cert.Issuer.String(), Serial: hex.EncodeToString(cert.SerialNumber.Bytes()),
		NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, RenewAfter: RenewAfter(cert),
	}
	if len(cert.URIs) == 1 {
		info.ID = cert.URIs[0].String()
		_, info.Node, _ = Parse(cert.URIs[0])
	}
	return info
}

// RenewAfter is when two thirds of a certificate's life are over.
func RenewAfter(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 3 * 2)
}
