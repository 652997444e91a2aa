// Package mesh is HTTP/2 requests between two pods, as services of a mesh send them to each other:
// with h2load and nghttpd, straight or through an Envoy beside each that does mutual TLS.
package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"weft.dev/weft/internal/bench/load"
	"weft.dev/weft/internal/bench/report"
)

// Ports inside the pods.
const (
	serverPort = 8080
	outPort    = 15001 // of the client's sidecar
	inPort     = 15006 // of the server's
)

// serverFiles is the directory that the server serves, below the Setup's.
const serverFiles = "www"

const (
	// readyTimeout is how long server and sidecars may take until a request is answered.
	readyTimeout = time.Minute
	// tryTimeout is how long one request is waited for meanwhile.
	tryTimeout = 5 * time.Second
	// connectTimeout is how long the client may take until its connections are open.
	connectTimeout = 30 * time.Second
	// warm is how long requests run before the clock starts.
	warm = 500 * time.Millisecond
	// spare is how much longer than the measured time the client runs, so that it still does at the
	// end.
	spare = time.Second
	// endTimeout is how long it may take to end, and to write its log, after that.
	endTimeout = 30 * time.Second
)

// bodies are the sizes of what the server serves, in KiB; rates are requests per second, 0 as many
// as go.
var (
	bodies = []int{0, 1, 10, 100}
	rates  = []int{0, 1000, 3200}
)

// Loads lists what can be measured: each body as often as goes, then at each rate.
func Loads() []Load {
	var loads []Load
	for _, rate := range rates {
		for _, size := range bodies {
			loads = append(loads, Load{KiB: size, Rate: rate})
		}
	}
	return loads
}

// Options describe a Setup.
type Options struct {
	Tools    Tools
	Dir      string // for its files; must not be there, and is removed with the Setup
	From, To load.Peer
	// Sidecars puts an Envoy beside each pod's program.
	Sidecars bool
}

// Setup is a running server, with sidecars or without, and a client to come.
type Setup struct {
	opts    Options
	base    string // what the client asks: scheme, address and port
	servers []*process
}

// Start starts the server and the sidecars, and returns once a request was answered. The caller
// closes the Setup.
func Start(ctx context.Context, opts Options) (*Setup, error) {
	s := &Setup{opts: opts}
	if err := os.Mkdir(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory for server and sidecars: %w", err)
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close ends what runs and removes its files; safe to call twice.
func (s *Setup) Close() error {
	for _, p := range s.servers {
		p.stop()
	}
	if err := os.RemoveAll(s.opts.Dir); err != nil {
		return fmt.Errorf("remove the files of server and sidecars: %w", err)
	}
	return nil
}

func (s *Setup) start(ctx context.Context) error {
	if err := s.writeBodies(); err != nil {
		return err
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	server := netip.AddrPortFrom(s.opts.To.IP, serverPort)
	ask := server
	if s.opts.Sidecars {
		server = netip.AddrPortFrom(loopback, serverPort)
		ask = netip.AddrPortFrom(loopback, outPort)
	}
	s.base = "http://" + ask.String()
	// A sidecar sends all that waits on a new connection before it knows the server's limit, which
	// by default is 100 requests at once, and answers 503 for what the server then refuses.
	p, err := start(s.opts.To.NS, s.opts.Tools.Server, "--no-tls",
		"--htdocs="+filepath.Join(s.opts.Dir, serverFiles),
		"--max-concurrent-streams="+strconv.Itoa(2*connections*rateStreams),
		"--address="+server.Addr().String(), strconv.Itoa(int(server.Port())))
	if err != nil {
		return err
	}
	s.servers = append(s.servers, p)
	if s.opts.Sidecars {
		if err := s.startSidecars(server, ask); err != nil {
			return err
		}
	}
	return poll(ctx, readyTimeout, s.alive, func() error { return s.try(ctx) })
}

func (s *Setup) writeBodies() error {
	dir := filepath.Join(s.opts.Dir, serverFiles)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("write what the server serves: %w", err)
	}
	for _, size := range bodies {
		path := filepath.Join(dir, Load{KiB: size}.body())
		if err := os.WriteFile(path, make([]byte, size<<10), 0o600); err != nil {
			return fmt.Errorf("write what the server serves: %w", err)
		}
	}
	return nil
}

// startSidecars puts an Envoy in front of the server and one behind the client's address.
func (s *Setup) startSidecars(server, ask netip.AddrPort) error {
	if s.opts.Tools.Envoy == "" {
		return ErrNoEnvoy
	}
	if err := writeCertificates(s.opts.Dir); err != nil {
		return err
	}
	wire := netip.AddrPortFrom(s.opts.To.IP, inPort)
	for _, one := range []struct {
		ns string
		sidecar
	}{
		{s.opts.To.NS, sidecar{side: serverSide, in: wire, out: server, dir: s.opts.Dir}},
		{s.opts.From.NS, sidecar{side: clientSide, in: ask, out: wire, dir: s.opts.Dir}},
	} {
		p, err := one.start(one.ns, s.opts.Tools.Envoy)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, p)
	}
	return nil
}

// alive is an error if a server has ended.
func (s *Setup) alive() error {
	var errs []error
	for _, p := range s.servers {
		errs = append(errs, p.died())
	}
	return errors.Join(errs...)
}

// try sends one request.
func (s *Setup) try(ctx context.Context) error {
	client, err := start(s.opts.From.NS, s.opts.Tools.Client, "--requests=1",
		s.base+"/"+Load{KiB: 1}.body())
	if err != nil {
		return err
	}
	defer client.stop()
	text, err := client.wait(ctx, tryTimeout)
	if err != nil {
		return err
	}
	if sum, err := parseSummary(text); err != nil || sum.succeeded != 1 {
		return errors.Join(fmt.Errorf("no answer from %s for %s", s.base, readyTimeout), err)
	}
	return nil
}

// Measure runs the client once and measures for dur, with every CPU kept awake: requests answered,
// how long they took, and what one of them cost the whole machine in CPU time, client and server
// included.
func (s *Setup) Measure(ctx context.Context, l Load, dur time.Duration) (report.Sample, error) {
	stop, err := load.KeepAwake(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	log := filepath.Join(s.opts.Dir, "requests")
	defer os.Remove(log)
	client, err := start(s.opts.From.NS, s.opts.Tools.Client,
		l.args(warm+dur+spare, log, s.base)...)
	if err != nil {
		return nil, err
	}
	defer client.stop()
	w, err := measured(ctx, client, dur)
	if err != nil {
		return nil, errors.Join(err, s.alive())
	}
	text, err := client.wait(ctx, spare+endTimeout)
	if err := errors.Join(err, s.alive()); err != nil {
		return nil, err
	}
	sum, err := parseSummary(text)
	if err == nil {
		err = sum.check(l)
	}
	if err != nil {
		return nil, err
	}
	file, err := os.Open(log)
	if err != nil {
		return nil, fmt.Errorf("read h2load's log: %w", err)
	}
	defer file.Close()
	times, err := w.parseLog(file)
	if err != nil {
		return nil, err
	}
	return w.sample(l, times, sum)
}

// measured is the part of the client's run that counts.
func measured(ctx context.Context, client *process, dur time.Duration) (w window, err error) {
	if err := client.says(ctx, started, connectTimeout); err != nil {
		return w, err
	}
	if err := sleep(ctx, warm); err != nil {
		return w, err
	}
	w.begin = time.Now()
	before, err := load.BusyCPU()
	if err != nil {
		return w, err
	}
	if err := sleep(ctx, dur); err != nil {
		return w, err
	}
	w.end = time.Now()
	after, err := load.BusyCPU()
	w.cpu = after - before
	return w, errors.Join(err, client.died())
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
