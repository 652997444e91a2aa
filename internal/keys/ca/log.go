package ca

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Signed is one line of the log.
type Signed struct {
	Time     time.Time `json:"time"`
	Node     string    `json:"node"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"notAfter"`
	// How is "issue", "join" or "renew".
	How string `json:"how"`
	// From is the serial of the certificate that was renewed.
	From string `json:"from,omitempty"`
}

func (a *Authority) note(leaf *x509.Certificate, node, how, from string) error {
	line, err := json.Marshal(Signed{
		Time: a.now().UTC().Truncate(time.Second), Node: node, Serial: leaf.SerialNumber.Text(16),
		NotAfter: leaf.NotAfter.UTC(), How: how, From: from,
	})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(a.dir, issuedFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY,
		0o600)
	if err != nil {
		return fmt.Errorf("log what is signed: %w", err)
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// Issued reads the log of what was signed, oldest first.
func (a *Authority) Issued() ([]Signed, error) {
	text, err := os.ReadFile(filepath.Join(a.dir, issuedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	var all []Signed
	for number, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var one Signed
		if err := json.Unmarshal(line, &one); err != nil {
			return all, fmt.Errorf("%s line %d: %w", filepath.Join(a.dir, issuedFile), number+1,
				err)
		}
		all = append(all, one)
	}
	return all, nil
}

// renewable says whether a certificate may be renewed: it is its node's newest, or the one before
// and the newest went lost on its way. So a stolen key is worth nothing here any more once its node
// has joined anew, and if a thief renews first, the node is refused and somebody asks why.
func (a *Authority) renewable(node string, cert *x509.Certificate) error {
	issued, err := a.Issued()
	if err != nil {
		return err
	}
	serial := cert.SerialNumber.Text(16)
	for _, last := range slices.Backward(issued) {
		if last.Node != node {
			continue
		}
		if last.Serial == serial || (last.From == serial && a.now().Sub(last.Time) < lostAnswer) {
			return nil
		}
		return fmt.Errorf("%w: %s, by %s on %s", ErrSuperseded, last.Serial, last.How,
			last.Time.Format(time.RFC3339))
	}
	// The log was begun anew.
	return nil
}
