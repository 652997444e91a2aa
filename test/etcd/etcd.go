// Package etcd runs real etcd for tests: one member or several, on unix sockets or with TLS, to be
// killed, filled and restored.
package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"weft.dev/weft/test/prebuilt"
)

// Cluster is an etcd cluster of a test.
type Cluster struct {
	Members []*Member
	t       testing.TB
}

// Member is one of its servers. Its directory outlives its process.
type Member struct {
	Name, Endpoint, Dir string

	t    testing.TB
	args []string
	cmd  *exec.Cmd
	log  *bytes.Buffer
	// ended is closed when the process is gone; the log is whole then.
	ended chan struct{}
	// cert is the file of the certificate that it shows clients, "" without TLS.
	cert string
}

// Options are what a cluster needs that is not the default.
type Options struct {
	// Members is how many there are; 0 is one.
	Members int
	// Quota is the size of the database at which etcd refuses to write, in bytes; 0 is etcd's own.
	Quota int64
	// CA, Cert and Key are PEM files: with them clients speak TLS on a port of the loopback, and
	// show a certificate.
	CA, Cert, Key string
	// Address gives what a member listens at, HOST:PORT on the loopback; nil is FreeAddress.
	Address func(testing.TB) string
}

// Start runs a cluster until the test ends.
func Start(t testing.TB, opt Options) *Cluster {
	t.Helper()
	binary := Binary(t)
	if opt.Address == nil {
		opt.Address = FreeAddress
	}
	for attempt := 1; ; attempt++ {
		c, err := launch(t, binary, opt)
		switch {
		case err == nil:
			return c
		case attempt == attempts || !strings.Contains(err.Error(), "address already in use"):
			t.Fatal(err)
		}
	}
}

// attempts is how often a cluster is started at most: a port that was free may have been taken
// since.
const attempts = 5

// launch runs a cluster that answers. If a member ends before, the error has its log, and all have
// ended.
func launch(t testing.TB, binary string, opt Options) (*Cluster, error) {
	t.Helper()
	c := &Cluster{t: t}
	dir, err := os.MkdirTemp("", "wt-etcd-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var initial []string
	for n := range max(opt.Members, 1) {
		m := &Member{t: t, Name: fmt.Sprint("m", n), Dir: filepath.Join(dir, fmt.Sprint("m", n)),
			log: &bytes.Buffer{}, cert: opt.Cert}
		m.Endpoint = "unix://" + filepath.Join(dir, m.Name+".sock")
		peer := "http://" + opt.Address(t)
		if opt.CA != "" {
			m.Endpoint = "https://" + opt.Address(t)
			m.args = append(m.args, "--client-cert-auth", "--trusted-ca-file", opt.CA,
				"--cert-file", opt.Cert, "--key-file", opt.Key)
		}
		m.args = append([]string{
			binary, "--name", m.Name, "--data-dir", m.Dir, "--listen-client-urls", m.Endpoint,
			"--advertise-client-urls", m.Endpoint,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--log-level",
			"warn", "--unsafe-no-fsync",
			"--heartbeat-interval", "50", "--election-timeout", "500",
			"--watch-progress-notify-interval", "1s",
			"--quota-backend-bytes", fmt.Sprint(opt.Quota),
		}, m.args...)
		initial = append(initial, m.Name+"="+peer)
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		m.args = append(m.args, "--initial-cluster", strings.Join(initial, ","))
		if err = m.start(); err != nil {
			break
		}
	}
	if err == nil && opt.CA == "" {
		err = c.await()
	}
	if err != nil {
		for _, m := range c.Members {
			m.stop()
		}
	}
	return c, err
}

// await waits until the cluster answers, all members run, and none has ended meanwhile.
func (c *Cluster) await() error {
	client := c.Client()
	for range 600 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := client.Get(ctx, "ready")
		cancel()
		for _, m := range c.Members {
			if m.hasEnded() {
				return m.endedError()
			}
		}
		if err == nil {
			return nil
		}
	}
	for _, m := range c.Members {
		m.stop() // its log is whole then
	}
	return fmt.Errorf("etcd does not answer: %s", c.Members[0].log)
}

// Endpoints are those of all members.
func (c *Cluster) Endpoints() []string {
	var out []string
	for _, m := range c.Members {
		out = append(out, m.Endpoint)
	}
	return out
}

// Client is one of etcd's own, until the test ends.
func (c *Cluster) Client() *clientv3.Client {
	c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { client.Close() })
	return client
}

// Leader is the member that leads.
func (c *Cluster) Leader() *Member {
	c.t.Helper()
	client := c.Client()
	for range 600 {
		for _, m := range c.Members {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := client.Status(ctx, m.Endpoint)
			cancel()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				return m
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.t.Fatal("etcd has no leader")
	return nil
}

// Start runs the member with what its directory holds. It waits until it listens, not until it
// answers.
func (m *Member) Start() {
	m.t.Helper()
	if err := m.start(); err != nil {
		m.t.Fatal(err)
	}
}

func (m *Member) start() error {
	cmd, ended := exec.Command(m.args[0], m.args[1:]...), make(chan struct{})
	m.cmd, m.ended = cmd, ended
	cmd.Stdout, cmd.Stderr = m.log, m.log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	go func() { cmd.Wait(); close(ended) }() //nolint:errcheck // the log says why
	m.t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may be dead
		<-ended
	})
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if m.listens() {
			return nil
		}
		select {
		case <-ended:
			return m.endedError()
		case <-time.After(20 * time.Millisecond):
		}
	}
	m.stop()
	return fmt.Errorf("etcd %s does not listen: %s", m.Name, m.log)
}

// listens says whether the member has its ports: etcd binds the peers' before its clients'. On a
// port of the loopback somebody else may listen, who does not show the member's certificate.
func (m *Member) listens() bool {
	if path, ok := strings.CutPrefix(m.Endpoint, "unix://"); ok {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}
	pemFile, err := os.ReadFile(m.cert)
	if err != nil {
		return false
	}
	own, _ := pem.Decode(pemFile)
	dialer := &net.Dialer{Timeout: time.Second}
	insecure := &tls.Config{InsecureSkipVerify: true} // the certificate is compared
	conn, err := tls.DialWithDialer(dialer, "tcp", strings.TrimPrefix(m.Endpoint, "https://"),
		insecure)
	if err != nil || own == nil {
		return false
	}
	defer conn.Close()
	return bytes.Equal(conn.ConnectionState().PeerCertificates[0].Raw, own.Bytes)
}

func (m *Member) hasEnded() bool {
	select {
	case <-m.ended:
		return true
	default:
		return false
	}
}

func (m *Member) endedError() error { return fmt.Errorf("etcd %s has ended: %s", m.Name, m.log) }

// stop ends the process if there is one.
func (m *Member) stop() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	m.cmd.Process.Kill() //nolint:errcheck // it may be dead
	<-m.ended
}

// Kill ends the member's process at once.
func (m *Member) Kill() {
	m.t.Helper()
	if err := m.cmd.Process.Kill(); err != nil {
		m.t.Fatalf("kill etcd: %v", err)
	}
	<-m.ended
	os.Remove(strings.TrimPrefix(m.Endpoint, "unix://"))
}

// Save copies the directory of a member that does not run.
func (m *Member) Save() (saved string) {
	m.t.Helper()
	saved = m.t.TempDir()
	if err := os.CopyFS(filepath.Join(saved, "data"), os.DirFS(m.Dir)); err != nil {
		m.t.Fatal(err)
	}
	return saved
}

// Restore puts what was saved in place of the directory of a member that does not run.
func (m *Member) Restore(saved string) {
	m.t.Helper()
	if err := os.RemoveAll(m.Dir); err != nil {
		m.t.Fatal(err)
	}
	if err := os.CopyFS(m.Dir, os.DirFS(filepath.Join(saved, "data"))); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Chmod(m.Dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
}

// given are the addresses that FreeAddress has returned.
var given sync.Map

// FreeAddress is one that nobody listens on now, and that it has not returned before: the kernel
// may give a port twice in a row.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, before := given.LoadOrStore(l.Addr().String(), true); !before {
			return l.Addr().String()
		}
	}
}

// Binary builds etcd from its module, unless the cache has it for the very same source and
// versions.
func Binary(t testing.TB) string {
	t.Helper()
	_, self, _, _ := runtime.Caller(0)
	return prebuilt.Program{
		Name: "etcd", Directory: "etcd",
		Source: filepath.Join(filepath.Dir(self), "testdata", "server"),
		Files:  []string{"main.go", "go.mod", "go.sum"},
		Build:  []string{"-ldflags=-s -w", "."}, GoFlags: "-buildvcs=false", Fetch: "make fetch",
	}.Binary(t)
}

// Rebind has the member, which does not run, listen at another endpoint from its next start on.
func (m *Member) Rebind(endpoint string) {
	for n, arg := range m.args {
		if arg == "--listen-client-urls" || arg == "--advertise-client-urls" {
			m.args[n+1] = endpoint
		}
	}
	m.Endpoint = endpoint
}
