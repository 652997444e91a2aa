package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/auditlog"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/test/kms"
)

const (
	// extendTTL is keys.extendTTL and keys.hardTTL; extendPast is how much of the first is watched
	// under load. What is left of it is for agents on a busy machine.
	extendTTL  = 45 * time.Second
	extendPast = 10 * time.Second
)

// TestExtendTTL takes the KMS away until the hard TTL is long over: nothing is lost while
// keys.extendTTL allows, and the agents say so; then packets are refused with a reason of their
// own; and when the KMS is back all is well by itself.
func TestExtendTTL(t *testing.T) {
	trustCounterparts(t)
	spec := strings.Replace(sealedNodes, "keys: {", "keys: {extendTTL: "+extendTTL.String()+", ", 1)
	l := newLab(t, "extend", parseSpec(t, spec))
	serveEcho(t, l.Pod("server"), l.Pod("client"))
	c := kms.StartGoogle(t)
	useKMS(t, l, c, extendTTL)
	load := startLoad(t, path{l.Pod("client"), l.Pod("server")})
	back := c.Down(t)
	defer back()
	eventually(t, "keys are extended", func() error { return everyAgent(t, l, past(0)) })
	eventually(t, "the hard TTL is long over",
		func() error { return everyAgent(t, l, past(extendPast)) })
	load.flowing(t, "past the hard TTL")
	load.nothingLost(t)
	during := newest(t, l)
	extensionTold(t, l)
	extensionEnds(t, l)
	back()
	recovers(t, l, during+1)
	eventually(t, "traffic after the KMS's return",
		func() error { return reach(t.Context(), l.Pod("client"), l.Pod("server")) })
}

// everyAgent asks all agents how their keys are.
func everyAgent(t *testing.T, l *lab.Lab, want func(*keys.Status) error) error {
	t.Helper()
	var errs []error
	for _, n := range agents(l) {
		s, err := keysOf(t.Context(), n)
		if err == nil {
			err = want(s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

// past wants the alarm, and the hard TTL to be over for a while.
func past(d time.Duration) func(*keys.Status) error {
	return func(s *keys.Status) error {
		alarm := strings.Contains(strings.Join(s.Problems, "\n"), "ttl: EXTENDED: epoch")
		if !alarm ||
			!slices.ContainsFunc(s.Epochs,
				func(e epochs.Status) bool {
					return !e.Extended.IsZero() &&
						time.Since(e.Expires) > d
				}) {
			return fmt.Errorf("problems %q, epochs %+v", s.Problems, s.Epochs)
		}
		return nil
	}
}

// extensionTold looks for the alarm in each agent's audit log.
func extensionTold(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, n := range agents(l) {
		cfg, err := config.Load(n.ConfigFile)
		if err != nil {
			t.Fatal(err)
		}
		records, err := auditlog.Read(cfg.AuditFile(), 0)
		if err != nil {
			t.Error(err)
		}
		told := slices.DeleteFunc(records,
			func(r audit.Record) bool { return r.Op != audit.EventExtended })
		if len(told) < 2 {
			t.Errorf("%s: the audit log tells of %d steps: %+v", n.Name, len(told), told)
		}
	}
}

// extensionEnds waits for the end that no configuration puts off.
func extensionEnds(t *testing.T, l *lab.Lab) {
	t.Helper()
	keysEnd(t, l, l.Node("a"), l.Pod("client"), l.Pod("server"))
	eventually(t, "the agents say that it is over", func() error {
		return everyAgent(t, l, func(s *keys.Status) error {
			if past(0)(s) == nil ||
				!slices.ContainsFunc(s.Peers,
					func(p keys.PeerStatus) bool { return p.State == keys.StateExpired }) {
				return fmt.Errorf("problems %q, peers %+v", s.Problems, s.Peers)
			}
			return nil
		})
	})
}
