package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/test/labtest"
)

// proof is what `weft encrypt verify -o json` prints, as far as tests look.
type proof struct {
	From, To, Peer string
	encryptcheck.Result
}

func verify(t *testing.T, n *lab.Node, args ...string) (proof, int, string) {
	t.Helper()
	out, errOut, code := weft(t,
		append([]string{"encrypt", "verify", "--instance", n.Instance, "--duration", "600ms", "-o",
			"json"}, args...)...)
	var p proof
	if out != "" {
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	return p, code, errOut
}

// TestVerify runs `weft encrypt verify` where it can prove something, where it cannot, and where
// something is readable.
func TestVerify(t *testing.T) {
	l := useSealed(t)
	a := l.Node("a")
	for name, args := range map[string][]string{
		"any pods": nil, "named pods": {"--from", "client", "--to", "shop/server"},
		"from the host": {"--from", "host", "--to", "server"},
		"to an address": {"--to", l.Pod("server").IPv6.String()},
		"to a node":     {"--to", l.Node("b").Addresses[0].String()},
	} {
		t.Run(name, func(t *testing.T) {
			p, code, errOut := verify(t, a, args...)
			if code != 0 || p.Verdict != encryptcheck.Proven || p.SealedToPeer < p.Sent.Total() ||
				p.Sent.UDP == 0 || p.Sent.TCP == 0 || p.Sent.ICMP == 0 || p.Peer != "b" {
				t.Errorf("exit code %d, %+v %s", code, p, errOut)
			}
		})
	}
	t.Run("nothing to see", func(t *testing.T) {
		if p, code, errOut := verify(t, a, "--interface", "lo"); code != 6 ||
			p.Verdict != encryptcheck.Inconclusive {
			t.Errorf("exit code %d, %+v %s", code, p, errOut)
		}
	})
	t.Run("a policy lets it be plain", func(t *testing.T) {
		putObject(t, l, "policy.yaml", labtest.OpenPolicy)
		plainExactly(t, l, l.Pod("web"))
		p, code, errOut := verify(t, a, "--to", "web")
		if code != 5 || p.Verdict != encryptcheck.Readable || p.Capture.Markers == 0 ||
			len(p.Capture.Finds) == 0 {
			t.Errorf("exit code %d, %+v %s", code, p, errOut)
		}
		// What nobody named is still sealed, and what the policy names does not disprove it.
		if p, code, errOut := verify(t, a, "--to", "server"); code != 0 {
			t.Errorf("exit code %d, %+v %s", code, p, errOut)
		}
	})
	for want, args := range map[string][]string{
		"on this node": {"--to", "db"}, "no published pod": {"--to", "nobody"},
		"no address of a known node": {"--to", "203.0.113.9"}, "no pod": {"--from", "server"},
		"--duration": {"--duration", "1ms"},
	} {
		if _, code, errOut := verify(t, a, args...); code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("%v: exit code %d, says %q, not %q", args, code, errOut, want)
		}
	}
}

// TestVerifyXDP verifies where packets pass no packet socket: it is proven where the kernel lets
// programs be watched, and elsewhere says that it cannot tell.
func TestVerifyXDP(t *testing.T) {
	l := useSealed(t)
	reconfigure(t, map[string]any{"mode": "xdp"}, agents(l)...)
	keyed(t, l, l.Node("a"))
	p, code, errOut := verify(t, l.Node("a"))
	want := 0
	if p.Unseen != "" {
		want = 6
	}
	if code != want || !p.Capture.Clean() {
		t.Errorf("exit code %d, not %d: %+v %s", code, want, p, errOut)
	}
}

// TestVerifyPlain runs it with encryption off: everything is readable, and it says so.
func TestVerifyPlain(t *testing.T) {
	l := useShared(t)
	p, code, errOut := verify(t, l.Node("a"), "--from", "client", "--to", "server")
	if code != 5 || p.Verdict != encryptcheck.Readable || p.Capture.Markers < p.Sent.Total() ||
		p.Capture.Plain == 0 {
		t.Errorf("exit code %d, %+v %s", code, p, errOut)
	}
}
