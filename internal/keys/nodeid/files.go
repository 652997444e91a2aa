package nodeid

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// ErrKeyMode is a key file that others than its owner may read.
var ErrKeyMode = errors.New("the key file is open to others")

// NextSuffix names the key that belongs to a certificate which was put in place just before a
// crash: certificate and key are two files, and no file system replaces both at once.
const NextSuffix = ".next"

// maxFile bounds what is read of a PEM file.
const maxFile = 1 << 20

// Paths are the files of a node's identity, in PEM.
type Paths struct {
	// Cert is the node's certificate, followed by authorities between it and the root if there are
	// any.
	Cert string
	// Key is its private key; only its owner may read it.
	Key string
	// Bundle holds the trust domain's roots.
	Bundle string
}

// Files is a Source that reads PEM files, and reads them again when they change.
type Files struct {
	paths Paths

	mu     sync.Mutex
	loaded *material
}

// material is what one reading of the files gave.
type material struct {
	stamps [3]fileStamp
	cert   *tls.Certificate
	roots  *x509.CertPool
}

// fileStamp changes when a file does. The change time also tells of a new mode or owner.
type fileStamp struct {
	inode         uint64
	size          int64
	mtime, change time.Time
}

// NewFiles makes a source of files. They are read at the first use, so that an agent starts before
// its certificate is there.
func NewFiles(paths Paths) (*Files, error) {
	for _, field := range []struct{ name, path string }{{"cert", paths.Cert}, {"key", paths.Key},
		{"bundle", paths.Bundle}} {
		if field.path == "" {
			return nil, fmt.Errorf("keys.certificates.%s: is missing: give the path of a PEM file",
				field.name)
		}
	}
	return &Files{paths: paths}, nil
}

// Certificate implements Source.
func (f *Files) Certificate(context.Context) (*tls.Certificate, error) {
	got, err := f.current()
	if err != nil {
		return nil, err
	}
	return got.cert, nil
}

// Roots implements Source.
func (f *Files) Roots(context.Context) (*x509.CertPool, error) {
	got, err := f.current()
	if err != nil {
		return nil, err
	}
	return got.roots, nil
}

// Close implements Source.
func (f *Files) Close() error { return nil }

// current returns what the files hold now. While they are being replaced they may not fit each
// other for a moment: then what they held before goes on, as it does for as long as they stay
// broken, except for a key that others may read.
func (f *Files) current() (*material, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stamps, err := f.stamps()
	if err == nil && f.loaded != nil && f.loaded.stamps == stamps {
		return f.loaded, nil
	}
	var fresh *material
	if err == nil {
		fresh, err = f.read()
	}
	switch {
	case err == nil:
		fresh.stamps = stamps
		f.loaded = fresh
	case f.loaded == nil || errors.Is(err, ErrKeyMode):
		return nil, err
	}
	return f.loaded, nil
}

// Problem is what keeps the files from being used now, nil if nothing does. A source may still give
// what it read before.
func (f *Files) Problem() error {
	_, err := f.read()
	return err
}

func (f *Files) stamps() (stamps [3]fileStamp, err error) {
	for i, path := range []string{f.paths.Cert, f.paths.Key, f.paths.Bundle} {
		info, err := os.Stat(path)
		if err != nil {
			return stamps, fileError(path, err)
		}
		stamps[i] = fileStamp{size: info.Size(), mtime: info.ModTime()}
		if raw, ok := info.Sys().(*syscall.Stat_t); ok {
			stamps[i].inode, stamps[i].change = raw.Ino, time.Unix(raw.Ctim.Unix())
		}
	}
	return stamps, nil
}

func (f *Files) read() (*material, error) {
	certPEM, err := readFile(f.paths.Cert, nil)
	if err != nil {
		return nil, err
	}
	cert, err := f.readPair(certPEM)
	if err != nil {
		return nil, err
	}
	bundle, err := readFile(f.paths.Bundle, nil)
	if err != nil {
		return nil, err
	}
	roots, err := ParseBundle(bundle)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", f.paths.Bundle, err)
	}
	pool := x509.NewCertPool()
	for _, root := range roots {
		pool.AddCert(root)
	}
	return &material{cert: cert, roots: pool}, nil
}

// readPair finds the key to a certificate.
func (f *Files) readPair(certPEM []byte) (*tls.Certificate, error) {
	var first error
	for _, path := range []string{f.paths.Key, f.paths.Key + NextSuffix} {
		keyPEM, err := readFile(path, checkKeyFile)
		if err == nil {
			var cert tls.Certificate
			cert, err = tls.X509KeyPair(certPEM, keyPEM)
			clear(keyPEM)
			if err == nil {
				return &cert, nil
			}
			err = fmt.Errorf("node certificate %s with key %s: %w", f.paths.Cert, path, err)
		}
		if first == nil {
			first = err
		}
		if errors.Is(err, ErrKeyMode) {
			break
		}
	}
	return nil, first
}

// readFile reads a bounded file; check sees the very file that is read, so nobody can swap it in
// between.
func readFile(path string, check func(path string, info fs.FileInfo) error) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fileError(path, err)
	}
	if check != nil {
		if err := check(path, info); err != nil {
			return nil, err
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fileError(path, err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: is larger than %d bytes: not a PEM file of certificates", path,
			maxFile)
	}
	return text, nil
}

// checkKeyFile refuses a private key that others than its owner can get at.
func checkKeyFile(path string, info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%w: %s has mode %04o: chmod 0600 %s, and get a new key if others had access to this machine", ErrKeyMode, path, mode, path)
	}
	if raw, ok := info.Sys().(*syscall.Stat_t); ok && raw.Uid != 0 && int(raw.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to user %d: chown root %s", ErrKeyMode, path, raw.Uid,
			path)
	}
	return nil
}

// CheckKeyFile says what is wrong with who may read a private key's file.
func CheckKeyFile(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fileError(path, err)
	}
	return checkKeyFile(path, info)
}

func fileError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s is not there: `weft ca join` gets one, docs/node-certificates.md lists the other ways", ErrNoCertificate, path)
	}
	return fmt.Errorf("read node certificate: %w", err)
}

// ParseBundle reads the roots of a PEM bundle; every block must be an authority's certificate.
func ParseBundle(text []byte) ([]*x509.Certificate, error) {
	var roots []*x509.Certificate
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %q: want certificates only", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(roots)+1, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %d (%s) is not an authority's", len(roots)+1,
				cert.Subject)
		}
		roots = append(roots, cert)
	}
	if len(roots) == 0 {
		return nil, errors.New("holds no certificate")
	}
	return roots, nil
}

// DefaultPaths are where the agent looks if nothing else is configured.
func DefaultPaths() Paths {
	return Paths{Cert: "/etc/weft/node.crt", Key: "/etc/weft/node.key", Bundle: "/etc/weft/ca.crt"}
}
