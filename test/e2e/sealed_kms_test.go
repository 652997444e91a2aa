package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/auditlog"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/test/kms"
)

// kmsProviders start a counterpart of each KMS; the file is the lab's own.
var kmsProviders = map[string]func(testing.TB) *kms.Counterpart{
	"file": nil, "aws": kms.StartAWS, "google": kms.StartGoogle, "azure": kms.StartAzure,
	"vault": func(t testing.TB) *kms.Counterpart { return kms.StartVault(t).Counterpart },
}

const (
	// kmsAge is keys.maxAge in these tests: an epoch every second.
	kmsAge = time.Second
	// kmsTTL is keys.hardTTL, which no outage in TestRotationOverKMS reaches.
	kmsTTL = 5 * time.Minute
	// kmsRotations is how many epochs pass in the short version.
	kmsRotations = 12
	// kmsLong is how long the version of WEFT_TEST_LONG takes for each provider.
	kmsLong = 5 * time.Minute
)

// TestRotationOverKMS makes a new epoch every second over each provider, under load; then the KMS
// goes away for more than a whole keys.maxAge and comes back. Nothing is lost, and no agent is
// restarted. With WEFT_TEST_LONG it goes on for five minutes with each.
func TestRotationOverKMS(t *testing.T) {
	trustCounterparts(t)
	l := newLab(t, "kms", parseSpec(t, sealedNodes))
	for _, name := range slices.Sorted(maps.Keys(kmsProviders)) {
		t.Run(name, func(t *testing.T) {
			var c *kms.Counterpart
			if start := kmsProviders[name]; start != nil {
				c = start(t)
			}
			useKMS(t, l, c, kmsTTL)
			before := kernelLosses(t, l)
			load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
			rotateByAge(t, l)
			if c != nil {
				goAway(t, l, c)
			}
			load.flowing(t, "at the end")
			load.nothingLost(t)
			audited(t, l)
			if t.Failed() {
				tellLosses(t, l, before)
			}
		})
	}
}

// trustCounterparts has agents that are started from now on trust the counterparts' certificates.
func trustCounterparts(t *testing.T) {
	t.Helper()
	bundle, err := kms.Trust(scratch)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", bundle)
}

// useKMS has the agents use a counterpart from now on, beginning with its first epoch. nil is the
// lab's key file.
func useKMS(t *testing.T, l *lab.Lab, c *kms.Counterpart, ttl time.Duration) {
	t.Helper()
	section := map[string]any{"maxAge": kmsAge.String(), "hardTTL": ttl.String()}
	if c != nil {
		c.Setenv(t)
		section["kek"] = c.URL
		for _, addr := range loopbackAddrs(c) {
			for _, n := range agents(l) {
				relay(t, n, addr)
			}
		}
	}
	for _, n := range agents(l) {
		if err := n.StopAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := writeKeys(t, n, map[string]any{"keys": section})
		t.Cleanup(func() {
			if err := os.WriteFile(n.ConfigFile, before, 0o644); err != nil {
				t.Error(err)
			}
		})
	}
	old, err := filepath.Glob(filepath.Join(l.ObjectsDir(), "keys", "epoch-*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range agents(l) {
		if err := n.StartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "an epoch of this KMS in use", func() error {
		number, err := newestInStore(t.Context(), l)
		if err != nil {
			return err
		}
		return onEpoch(t.Context(), l, number)
	})
}

var loopback = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// loopbackAddrs are the host's own addresses that a counterpart is to be found at.
func loopbackAddrs(c *kms.Counterpart) []string {
	seen := map[string]bool{}
	for _, text := range append(slices.Collect(maps.Values(c.Env)), c.URL) {
		for _, addr := range loopback.FindAllString(text, -1) {
			seen[addr] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// relay makes an address of the host's loopback be there in a node's own network namespace, too.
func relay(t *testing.T, n *lab.Node, addr string) {
	t.Helper()
	var listener net.Listener
	err := n.Do(func() (err error) {
		listener, err = net.Listen("tcp", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", addr)
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in); out.Close() }()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

// keysOf asks an agent how its keys are.
func keysOf(ctx context.Context, n *lab.Node) (*keys.Status, error) {
	return admin.NewClient(n.Socket).Keys(ctx)
}

// newestInStore is the newest epoch that an agent knows of, whether it can read it or not.
func newestInStore(ctx context.Context, l *lab.Lab) (uint64, error) {
	var newest uint64
	for _, n := range agents(l) {
		s, err := keysOf(ctx, n)
		if err != nil {
			return 0, err
		}
		newest = max(newest, s.Newest)
	}
	if newest == 0 {
		return 0, errors.New("there is no epoch")
	}
	return newest, nil
}

// rotateByAge lets many epochs pass, or five minutes.
func rotateByAge(t *testing.T, l *lab.Lab) {
	t.Helper()
	rotations, end := uint64(kmsRotations), time.Now()
	if os.Getenv("WEFT_TEST_LONG") != "" {
		end = end.Add(kmsLong)
	}
	began := time.Now()
	first := newest(t, l)
	for last, since := first, time.Now(); last < first+rotations ||
		time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		now := newest(t, l)
		if now > last {
			last, since = now, time.Now()
		}
		if time.Since(since) > patience {
			s, _ := keysOf(t.Context(), agents(l)[0])
			t.Fatalf("no epoch follows %d: %+v", last, s)
		}
	}
	last := newest(t, l)
	eventually(t, fmt.Sprintf("epoch %d in use", last),
		func() error { return onEpoch(t.Context(), l, last) })
	t.Logf("%d rotations in %s", last-first, time.Since(began).Round(time.Millisecond))
}

func newest(t *testing.T, l *lab.Lab) uint64 {
	t.Helper()
	number, err := newestInStore(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// goAway takes the KMS away for longer than keys.maxAge. The agents name it, go on, and recover by
// themselves.
func goAway(t *testing.T, l *lab.Lab, c *kms.Counterpart) {
	t.Helper()
	back := c.Down(t)
	defer back()
	eventually(t, "an agent says that the KMS is unreachable", func() error {
		var said []string
		for _, n := range agents(l) {
			s, err := keysOf(t.Context(), n)
			if err != nil {
				return err
			}
			if s.KMS.Failing == "unreachable" {
				return nil
			}
			said = append(said, fmt.Sprintf("%s: %q", n.Name, s.KMS.Failing))
		}
		return fmt.Errorf("they say %v", said)
	})
	during := newest(t, l)
	time.Sleep(2 * kmsAge)
	if after := newest(t, l); after != during {
		t.Errorf("epoch %d was followed by %d while the KMS was away", during, after)
	}
	back()
	recovers(t, l, during+2)
}

// recovers waits for an epoch after the KMS came back.
func recovers(t *testing.T, l *lab.Lab, number uint64) {
	t.Helper()
	var err error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(100 * time.Millisecond) { // its backoff may have grown
		if err = onEpoch(t.Context(), l, number); err == nil {
			t.Logf("in use again %s after the KMS came back",
				time.Since(begin).Round(time.Millisecond))
			return
		}
	}
	t.Errorf("the KMS is back, and: %v", err)
}

// audited holds the agents' audit logs to tell of everything that was done.
func audited(t *testing.T, l *lab.Lab) {
	t.Helper()
	ops := map[string]int{}
	for _, n := range agents(l) {
		cfg, err := config.Load(n.ConfigFile)
		if err != nil {
			t.Fatal(err)
		}
		records, err := auditlog.Read(cfg.AuditFile(), 0)
		if err != nil {
			t.Error(err)
		}
		for _, r := range records {
			if ops[r.Op]++; r.Node != n.Name || r.Outcome == "" {
				t.Errorf("a record of %s: %+v", n.Name, r)
			}
		}
	}
	for _, op := range []string{audit.OpCreate, audit.OpWrap, audit.OpUnwrap, audit.OpSwitch,
		audit.OpDestroy} {
		if ops[op] == 0 {
			t.Errorf("the audit logs say nothing of %s: %v", op, ops)
		}
	}
}
