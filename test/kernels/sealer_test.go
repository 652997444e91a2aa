package kernels

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/sealer/control"
	"weft.dev/weft/test/espref"
)

// realSealer is a weft-sealer on the tap of a weftNode of engine user, with the test in the agent's
// place.
type realSealer struct {
	*control.Process
	w *weftNode
}

// sealerBinary is what was built for the VM, or is built here.
func sealerBinary(t *testing.T, dir string) string {
	t.Helper()
	if built := os.Getenv("WEFT_SEALER"); built != "" {
		return built
	}
	binary := filepath.Join(dir, control.Program)
	build := exec.Command("go", "build", "-o", binary, "weft.dev/weft/cmd/weft-sealer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return binary
}

// startSealer starts the process, without keys.
func (w *weftNode) startSealer(t *testing.T) *realSealer {
	t.Helper()
	dir, err := os.MkdirTemp("", "wt-kn-sealer-") // t.TempDir's are too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var tap *os.File
	must(t, netns.Do(w.ns, func() error {
		tap, err = w.OpenSealerTap()
		// What leaves by the wire is cut and summed before, as a card would do: the receiver has
		// all of it to verify.
		return errors.Join(err,
			netdev.SetFeatures("wire1",
				map[string]bool{"tx-udp-segmentation": false, "tx-checksum-ip-generic": false}))
	}))
	defer tap.Close()
	p, err := control.Start(t.Context(),
		control.Options{Binary: sealerBinary(t, dir), Tap: tap,
			SocketPath: filepath.Join(dir, "sock")})
	must(t, err)
	t.Cleanup(func() { _ = p.Kill(); <-p.Done() })
	must(t, p.Configure(t.Context(), control.Config{ESPPort: espref.Port}))
	must(t, p.Begin(t.Context()))
	return &realSealer{p, w}
}

// rekey gives the process the keys that it is to have now, in place of those that it had, and says
// so to the hooks.
func (s *realSealer) rekey(t *testing.T) {
	t.Helper()
	held, err := s.List(t.Context())
	must(t, err)
	must(t, s.Remove(t.Context(), held...))
	for _, k := range s.w.sas.SealerKeys() {
		if !s.w.sas.SealerSecret(&k) {
			t.Fatalf("no secret of SA %#x", k.ID)
		}
		must(t,
			s.Install(t.Context(),
				control.Key{Out: k.Out, SA: k.ID, Fingerprint: k.Fingerprint, Key: k.Key,
					Salt: k.Salt}))
		must(t, s.w.sas.MarkSealer(k, true))
	}
	s.forgive(t)
}

// forgive has the hooks forget that the process owes them an answer, for which they do not wait
// long: in a VM it can be late, and they would take over.
func (s *realSealer) forgive(t *testing.T) {
	t.Helper()
	must(t, netns.Do(s.w.ns, func() error { return s.w.SetSealer(true) }))
}

func (s *realSealer) stats(t *testing.T) control.Stats {
	t.Helper()
	now, err := s.Stats(t.Context())
	must(t, err)
	return now
}

// opening makes sure that a sealer, if the node has one, has opened some of what do sends to the
// node. Not all: where it is late, the hooks open the rest.
func (w *weftNode) opening(t *testing.T, do func() error) error {
	t.Helper()
	if w.sealer == nil {
		return do()
	}
	before := w.sealer.stats(t).Open.Packets
	w.sealer.forgive(t)
	err := do()
	if err == nil && w.sealer.stats(t).Open.Packets == before {
		err = errors.New("the sealer has opened nothing")
	}
	return err
}
